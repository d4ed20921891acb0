# SPDX-License-Identifier: Apache-2.0
"""A document as JSON.

The schemas beside this file describe it, and docs/report-schema.md explains it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.report.plain import plain

MOST_ROWS = 10
_FEWER = {"findings": 5, "savings.rows": 5}
"""Of some lists, by the begin of their place."""


def json_text(document: Any, most_rows: int | None = MOST_ROWS) -> str:
    """The document as one line.

    Args:
        document: of a run, of one of its steps, of a job, or of how it ended.
        most_rows: of a longer list only so many are kept, the first, or half as many;
            `left_out` says how many are not. None keeps all.
    """
    left_out: dict[str, int] = {}
    members = plain(document)
    if most_rows is not None:
        fewer = _FEWER | {one.name: one.most_rows for one in aspects() if one.most_rows}
        members = _shortened(members, most_rows, fewer, "", left_out)
    if left_out:
        members["left_out"] = left_out
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
