# SPDX-License-Identifier: Apache-2.0
"""Write the JSON Schema of `report --json`, and the reference of its keys in report-schema.md.

Both come from the dataclasses of pyinstrument_gpu/document and their docstrings.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pyinstrument_gpu.document import json_text
from pyinstrument_gpu.document.document import VERSION, Document
from pyinstrument_gpu.document.one_step import StepDocument

SCHEMA_FILE = Path(json_text.__file__).with_name("schema.json")
PAGE = Path(__file__).with_name("report-schema.md")
_REFERENCE = "## Reference\n"
_LEFT_OUT = {
    "type": "object",
    "additionalProperties": {"type": "integer", "minimum": 1},
    "description": "How many rows were left out of long lists, by the place of the list.",
}


def schema() -> dict[str, Any]:
    """The schema of both documents: of a run, and of one of its steps."""
    (_, _), types = msgspec.json.schema_components(
        [Document, StepDocument], ref_template="#/$defs/{name}"
    )
    documented = {name: _documented(_type_named(name), types[name]) for name in sorted(types)}
    for name in (Document.__name__, StepDocument.__name__):
        documented[name]["properties"]["left_out"] = _LEFT_OUT
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pyinstrument-gpu report --json, version {VERSION}",
        "description": "A line of JSON for each run. A key that is not there is not known, or has "
        "nothing to say.",
        "oneOf": [{"$ref": f"#/$defs/{one.__name__}"} for one in (Document, StepDocument)],
        "$defs": documented,
    }


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def page_text() -> str:
    """The page with its reference brought up to date."""
    written, _, _ = PAGE.read_text().partition(_REFERENCE)
    return written + _REFERENCE + "".join(_reference())


def _type_named(name: str) -> type:
    pending: list[type] = [Document, StepDocument]
    seen: set[type] = set()
    while pending:
        one = pending.pop()
        if one.__name__ == name:
            return one
        seen.add(one)
        for field in msgspec.inspect.type_info(one).fields:  # type: ignore[attr-defined]
            found = _dataclass_in(field.type)
            if found is not None and found not in seen:
                pending.append(found)
    raise AssertionError(f"no dataclass of the documents is called {name}")


def _dataclass_in(found: Any) -> type | None:
    if isinstance(found, msgspec.inspect.UnionType):
        return next((one for one in map(_dataclass_in, found.types) if one is not None), None)
    if isinstance(found, msgspec.inspect.VarTupleType):
        return _dataclass_in(found.item_type)
    return found.cls if isinstance(found, msgspec.inspect.DataclassType) else None


def _documented(of: type, written: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass, with what its docstring says of each field. What is None or an
    empty list is never written, so it is neither required nor of another type."""
    summary, attributes = _docstring(of)
    properties, required = {}, []
    for name, described in written["properties"].items():
        kinds = described.pop("anyOf", None)
        if kinds is None:
            if described.get("type") != "array":
                required.append(name)
        else:
            (kind,) = (one for one in kinds if one != {"type": "null"})
            described |= kind
        if described.get("type") == "array":
            described["minItems"] = 1
        if name in attributes:
            # The siblings of a reference count in this draft.
            described["description"] = attributes[name]
        properties[name] = described
    return {
        "type": "object",
        "description": summary,
        "properties": properties,
        "required": required,
    }


def _docstring(of: type) -> tuple[str, dict[str, str]]:
    text = inspect.getdoc(of) or ""
    summary, _, block = text.partition("Attributes:")
    found = {}
    for names, words in re.findall(
        r"^    (\w[\w, ]*): ((?:.|\n(?!    \w[\w, ]*: ))*)", block, re.M
    ):
        for name in names.split(", "):
            found[name] = " ".join(words.split())
    return " ".join(summary.split()), found


def _reference() -> Iterator[str]:
    types = schema()["$defs"]
    first = [Document.__name__, StepDocument.__name__]
    for name in [*first, *(name for name in types if name not in first)]:
        found = types[name]
        yield f"\n### {name}\n\n{found['description']}\n\n| key | type | |\n|---|---|---|\n"
        for key, described in found["properties"].items():
            about = described.get("description", "").replace("|", "\\|")
            always = "" if key in found["required"] else ", may be missing"
            yield f"| `{key}` | {_type_of(described)}{always} | {about} |\n"


def _type_of(described: dict[str, Any]) -> str:
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if described.get("type") == "array":
        return f"list of {_type_of(described['items'])}"
    return str(described["type"])


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text())
    PAGE.write_text(page_text())
