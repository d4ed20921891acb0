# SPDX-License-Identifier: Apache-2.0
"""The MEMORY document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.memory.data import (
    MEMORY_POINT_DTYPE,
    MedianBytes,
    Memory,
    OutOfMemory,
    PhaseMemory,
)
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.items import NONE
from pyinstrument_gpu.core.file.json_document import (
    Each,
    Object,
    Schema,
    fitting,
    json_object,
    picked,
)
from pyinstrument_gpu.core.file.steps import StepNumbering

_LIMIT = 1 << 62
_MOST_POINTS = 1000  # the time and memory of a slope grow with their square

_is_count = fits.integer(0, _LIMIT)
_is_count_or_null = fits.or_null(_is_count)
_is_text = fits.text(1000)
_is_difference = fits.integer(1 - _LIMIT, _LIMIT)
_COUNTS = dict.fromkeys(("steps", "lost", "phases_lost"), _is_count) | dict.fromkeys(
    ("device", "peak_bytes", "reserved_peak_bytes"), _is_count_or_null
)
_COUNTS_OF_PHASE = dict.fromkeys(
    ("calls", "steps", "begin_bytes", "end_bytes", "peak_bytes"), _is_count
)
_FACTS_OF_EVENT = {
    **dict.fromkeys(("device", "request_bytes", "limit_bytes", "free_bytes"), _is_count),
    **dict.fromkeys(("step", "allocated_bytes", "reserved_bytes"), _is_count_or_null),
    **dict.fromkeys(("module", "settings"), fits.or_null(_is_text)),
}


def _is_median(value: Any) -> bool:
    """The median and the interval of it, or null."""
    if value is None:
        return True
    is_row = fits.row(_is_difference, _is_difference, _is_difference)(value)
    return is_row and bool(value[1] <= value[0] <= value[2])


def _schema(paths: int) -> Schema:
    """What the document of a run with so many paths may say."""
    is_path = fits.integer(0, paths)
    phase = fits.fields(
        path=is_path,
        **_COUNTS_OF_PHASE,
        peak_is_exact=fits.truth,
        left_bytes=_is_median,
        own_left_bytes=_is_median,
    )
    event = fits.fields(
        path=fits.or_null(is_path), **_FACTS_OF_EVENT, monotonic_ns=_is_count_or_null
    )
    return {
        **_COUNTS,
        "phases": Each(phase),
        "outside_left_bytes": _is_median,
        "points": Each(fits.row(fits.integer(0, NONE), _is_count, _is_count_or_null)),
        "out_of_memory": Object({"count": _is_count, "events": Each(event)}),
        "notes": Each(_is_text),
    }


def decode_memory(
    data: bytes, paths: Sequence[str], numbering: StepNumbering, anchor: Mapping[str, int]
) -> tuple[Memory, int]:
    """What the document says, and how many of its parts make no sense.

    Args:
        paths: the run's paths.
        numbering: makes the steps' indices of their serial numbers.
        anchor: the first reading of the machine's clocks.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    left_out: list[str] = []
    found = fitting(json_object(data, "MEMORY"), _schema(len(paths)), left_out)
    points = _points(found.get("points", []), numbering)
    if len(points) > _MOST_POINTS or (np.diff(points["step"]) <= 0).any():
        points = points[:0]
        left_out.append("points")
    ran_out = found.get("out_of_memory", {})
    events = tuple(_event(one, paths, anchor) for one in ran_out.get("events", []))
    memory = Memory(
        **{name: found[name] for name in _COUNTS if name in found},
        phases={paths[one["path"]]: _phase(one) for one in found.get("phases", [])},
        outside_left_bytes=_median(found.get("outside_left_bytes")),
        points=points,
        out_of_memory_count=max(len(events), ran_out.get("count", 0)),
        out_of_memory=events,
        notes=tuple(found.get("notes", [])),
    )
    return memory, len(left_out)


def _phase(found: Mapping[str, Any]) -> PhaseMemory:
    return PhaseMemory(
        **picked(found, _COUNTS_OF_PHASE),
        peak_is_exact=found["peak_is_exact"],
        left_bytes=_median(found.get("left_bytes")),
        own_left_bytes=_median(found.get("own_left_bytes")),
    )


def _median(found: Sequence[int] | None) -> MedianBytes | None:
    return None if found is None else MedianBytes(*found)


def _points(found: Sequence[Sequence[Any]], numbering: StepNumbering) -> NDArray[np.void]:
    """Memory at the end of those steps whose index is known."""
    points = []
    for serial, allocated, reserved in found:
        step = numbering.index(serial)
        # The numbers of the steps are made before it is known which of them will be dropped.
        if step is not None and step >= 0:
            points.append((step, allocated, -1 if reserved is None else reserved))
    return np.array(points, MEMORY_POINT_DTYPE)


def _event(
    found: Mapping[str, Any], paths: Sequence[str], anchor: Mapping[str, int]
) -> OutOfMemory:
    path, at_ns = found.get("path"), found.get("monotonic_ns")
    run_began_ns = began_ns(anchor, "monotonic_ns")
    return OutOfMemory(
        **picked(found, _FACTS_OF_EVENT),
        path=None if path is None else paths[path],
        time_ns=None if at_ns is None or run_began_ns is None else at_ns - run_began_ns,
    )
