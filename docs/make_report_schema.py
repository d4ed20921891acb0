# SPDX-License-Identifier: Apache-2.0
"""Write the JSON Schemas of what `report`, `why`, `goodput` and `history` print as JSON, and the
keys of their documents in report-schema.md.

All come from the dataclasses of the documents and their docstrings.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.goodput.report import GOODPUT_VERSION, GoodputDocument
from pyinstrument_gpu.history.history import HISTORY_VERSION, HistoryDocument
from pyinstrument_gpu.job.ending_report import ENDING_VERSION, JobEnding
from pyinstrument_gpu.job.report import JOB_VERSION, JobDocument
from pyinstrument_gpu.report import json_text
from pyinstrument_gpu.report.document import VERSION, Document
from pyinstrument_gpu.report.one_step import StepDocument


def _whole_document() -> type:
    """The document with the sections of all aspects as members, as JSON has it."""
    lines = inspect.cleandoc(Document.__doc__ or "")
    fields: list[tuple[str, Any]] = []
    for field in dataclasses.fields(Document):
        if field.name != "sections":
            fields.append((field.name, field.type))
            continue
        shown = [one for one in aspects() if one.section_type is not None]
        fields += [(one.name, one.section_type) for one in shown]
        about = "".join(f"    {one.name}: {one.about}\n" for one in shown)
        lines = re.sub(r"    sections: .*?\n(?=    notes:)", about, lines, flags=re.S)
    hints = typing.get_type_hints(Document)
    typed = [(name, hints.get(name, kind)) for name, kind in fields]
    whole = dataclasses.make_dataclass("Document", typed, frozen=True)
    whole.__doc__ = lines
    return whole


FOLDER = Path(json_text.__file__).parent
PAGE = Path(__file__).with_name("report-schema.md")
_LEFT_OUT = {
    "type": "object",
    "additionalProperties": {"type": "integer", "minimum": 1},
    "description": "How many rows were left out of long lists, by the place of the list.",
}


class Printed(NamedTuple):
    """What a command prints.

    Attributes:
        file: the name of its schema.
        heading: of its reference.
        roots: the documents, each of which may be a line of it.
        title: which command, and the version of the documents.
        line: what a line is of.
        is_cut: whether long lists may be cut.
    """

    file: str
    heading: str
    roots: tuple[type, ...]
    title: str
    line: str
    is_cut: bool = True


PRINTED = (
    Printed(
        "schema.json",
        "## One run\n",
        (_whole_document(), StepDocument),
        f"pyinstrument-gpu report --json, version {VERSION}",
        "A line of JSON for each run.",
    ),
    Printed(
        "job_schema.json",
        "\n## Jobs\n",
        (JobDocument,),
        f"pyinstrument-gpu report --json of the ranks of a job, version {JOB_VERSION}",
        "A line of JSON for a job.",
    ),
    Printed(
        "ending_schema.json",
        "\n## Endings of jobs\n",
        (JobEnding,),
        f"pyinstrument-gpu why --json, version {ENDING_VERSION}",
        "A line of JSON for a job, or for a program alone.",
        is_cut=False,
    ),
    Printed(
        "goodput_schema.json",
        "\n## Lives of jobs\n",
        (GoodputDocument,),
        f"pyinstrument-gpu goodput --json, version {GOODPUT_VERSION}",
        "A line of JSON for a job with all of its attempts.",
        is_cut=False,
    ),
    Printed(
        "history_schema.json",
        "\n## Histories\n",
        (HistoryDocument,),
        f"pyinstrument-gpu history --json, version {HISTORY_VERSION}",
        "A line of JSON for all runs in a store.",
        is_cut=False,
    ),
)


def schema_text(of: Printed) -> str:
    """The schema, as it stands in its file."""
    return json.dumps(_schema(of), indent=1, ensure_ascii=False) + "\n"


def page_text() -> str:
    """The page with its reference brought up to date."""
    written, _, _ = PAGE.read_text().partition(PRINTED[0].heading)
    references = (of.heading + "".join(_reference(_schema(of), of.roots)) for of in PRINTED)
    return written + "".join(references)


def _schema(of: Printed) -> dict[str, Any]:
    (*_,), types = msgspec.json.schema_components(
        of.roots,
        schema_hook=lambda _: {"type": "string"},  # a name of a kind of its own
        ref_template="#/$defs/{name}",
    )
    documented = {
        name: _choice(types[name])
        if "enum" in types[name]
        else _documented(_type_named(name, of.roots), types[name])
        for name in sorted(types)
    }
    for root in of.roots if of.is_cut else ():
        documented[root.__name__]["properties"]["left_out"] = _LEFT_OUT
    refs = [{"$ref": f"#/$defs/{one.__name__}"} for one in of.roots]
    absent = "A key that is not there is not known, or has nothing to say."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": of.title,
        "description": f"{of.line} {absent}",
        **({"oneOf": refs} if len(refs) > 1 else refs[0]),
        "$defs": documented,
    }


def _type_named(name: str, roots: Sequence[type]) -> type:
    pending: list[type] = [*roots]
    seen: set[type] = set()
    while pending:
        one = pending.pop()
        if one.__name__ == name:
            return one
        seen.add(one)
        for field in msgspec.inspect.type_info(one).fields:  # type: ignore[attr-defined]
            found = _class_in(field.type)
            if found is not None and found not in seen:
                pending.append(found)
    raise AssertionError(f"no class of the documents is called {name}")


def _class_in(found: Any) -> type | None:
    if isinstance(found, msgspec.inspect.UnionType):
        return next((one for one in map(_class_in, found.types) if one is not None), None)
    if isinstance(found, msgspec.inspect.VarTupleType):
        return _class_in(found.item_type)
    is_known = isinstance(found, msgspec.inspect.DataclassType | msgspec.inspect.StructType)
    return found.cls if is_known else None


def _choice(written: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type that is one of some texts."""
    return {"type": "string", "description": written["description"], "enum": written["enum"]}


def _documented(of: type, written: dict[str, Any]) -> dict[str, Any]:
    """The schema of a data class or a struct, with what its docstring says of each field. What is
    None or an empty list is never written, so it is neither required nor of another type."""
    summary, attributes = _docstring(of)
    properties, required = {}, []
    # A file may have it as a list, or call a field by another name.
    fields = msgspec.inspect.type_info(of).fields  # type: ignore[attr-defined]
    members = written.get("prefixItems") or written["properties"].values()
    for name, described in zip([one.name for one in fields], members, strict=True):
        described.pop("default", None)
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
    """What it is, and what its attributes are, those that it inherits as well."""
    found = {}
    for base in reversed(of.__mro__):
        for names, words in re.findall(
            r"^    (\w[\w, ]*): ((?:.|\n(?!    \w[\w, ]*: ))*)",
            inspect.cleandoc(base.__doc__ or "").partition("Attributes:")[2],
            re.M,
        ):
            for name in names.split(", "):
                found[name] = " ".join(words.split())
    return " ".join((inspect.getdoc(of) or "").partition("Attributes:")[0].split()), found


def _reference(of: dict[str, Any], roots: Sequence[type]) -> Iterator[str]:
    """The keys of the documents themselves. Those of what is inside them are in the schema."""
    for name in (root.__name__ for root in roots):
        found = of["$defs"][name]
        yield f"\n### {name}\n\n{found['description']}\n"
        yield "\n"
        for key, described in found["properties"].items():
            about = described.get("description", "")
            optional = "" if key in found["required"] else "?"
            yield f"* `{key}`{optional} ({_type_of(described)}){f': {about}' if about else ''}\n"


def _type_of(described: dict[str, Any]) -> str:
    if "$ref" in described:
        return str(described["$ref"].rpartition("/")[2])
    if described.get("type") == "array":
        return f"list of {_type_of(described['items'])}"
    return str(described["type"])


if __name__ == "__main__":
    for printed in PRINTED:
        (FOLDER / printed.file).write_text(schema_text(printed))
    PAGE.write_text(page_text())
