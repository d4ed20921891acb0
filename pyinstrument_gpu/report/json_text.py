# SPDX-License-Identifier: Apache-2.0
"""A document as JSON.

The schemas beside this file describe it, and docs/report-schema.md explains it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.report.plain import plain

MOST_ROWS = 10
_FEWER = {"findings": 5, "savings.rows": 5}
"""Of some lists, by the begin of their place."""
MOST_BYTES = 4096
_ALWAYS = ("version", "file", "verdict")
_WITHOUT = "phases_without_steps"


def json_text(
    document: Any,
    most_rows: int | None = MOST_ROWS,
    sections: Sequence[str] = (),
    phase: str | None = None,
) -> str:
    """The document as one line.

    Args:
        document: of a run, of one of its steps, of a job, or of how it ended.
        most_rows: of a longer list only so many are kept, the first, or half as many;
            `left_out` says how many are not. None keeps all.
        sections: the only members, beside the verdict. Of them, and of a phase, so many rows are
            kept that the line has no more than `MOST_BYTES`, but one of each list at least.
        phase: the path of the only phase, with those inside it.

    Raises:
        KeyError: there is no such member or phase, with a sentence on which there are.
    """
    members = plain(document)
    if phase is not None:
        members = _members_of_phase(members, phase)
    for name in sections:
        if name not in members:
            raise KeyError(f"there is no section {name!r}; there are: {', '.join(members)}")
    if sections:
        members = {name: one for name, one in members.items() if name in (*_ALWAYS, *sections)}
    text = _line(members, most_rows)
    while (sections or phase is not None) and most_rows is not None and most_rows > 1:
        if len(text.encode()) <= MOST_BYTES:
            break
        most_rows -= 1
        text = _line(members, most_rows)
    return text


def _members_of_phase(members: dict[str, Any], phase: str) -> dict[str, Any]:
    found = _of_phase(members, phase)
    if not found:
        paths = [row["path"] for row in (*members.get("phases", ()), *members.get(_WITHOUT, ()))]
        raise KeyError(f"there is no phase {phase!r}; there are: {', '.join(paths)}")
    return {**{name: members[name] for name in _ALWAYS if name in members}, **found}


def _of_phase(value: Any, phase: str) -> Any:
    """Return the part of a value that is about a phase; None where nothing is."""
    if isinstance(value, list):
        return [kept for one in value if (kept := _of_phase(one, phase))] or None
    if not isinstance(value, dict):
        return None
    path = value.get("path")
    if isinstance(path, str):
        return value if f"{path}/".startswith(f"{phase}/") else None
    kept = {name: _of_phase(one, phase) for name, one in value.items()}
    return {name: one for name, one in kept.items() if one} or None


def _line(members: dict[str, Any], most_rows: int | None) -> str:
    left_out: dict[str, int] = {}
    if most_rows is not None:
        fewer = _FEWER | {one.name: one.most_rows for one in aspects() if one.most_rows}
        members = _shortened(members, most_rows, fewer, "", left_out)
    if left_out:
        members = {**members, "left_out": left_out}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _shortened(
    value: Any, most: int, fewer: Mapping[str, int], place: str, left_out: dict[str, int]
) -> Any:
    if isinstance(value, dict):
        return {
            name: _shortened(one, most, fewer, f"{place}.{name}" if place else name, left_out)
            for name, one in value.items()
        }
    if not isinstance(value, list):
        return value
    most_here = min([most, *(few for begin, few in fewer.items() if place.startswith(begin))])
    if len(value) > most_here and isinstance(value[0], dict):
        left_out[place] = left_out.get(place, 0) + len(value) - most_here
        value = value[:most_here]
    return [_shortened(one, most, fewer, place, left_out) for one in value]
