# SPDX-License-Identifier: Apache-2.0
"""The MEMORY document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import RunFileDamagedError
from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.format.steps import StepNumbering
from pyinstrument_gpu.model.memory import (
    MEMORY_POINT_DTYPE,
    MedianBytes,
    Memory,
    OutOfMemory,
    PhaseMemory,
)

_LIMIT = 1 << 62
_SERIAL_LIMIT = 0xFFFFFFFF
_MOST_CHARACTERS = 1000
_MOST_POINTS = 1000  # the time and memory of a slope grow with their square


class MemoryDocument(NamedTuple):
    """`left_out` is the number of its parts that make no sense."""

    memory: Memory
    left_out: int


def decode_memory(
    data: bytes, paths: Sequence[str], numbering: StepNumbering, anchor: Mapping[str, int]
) -> MemoryDocument:
    """What the document says.

    Args:
        paths: the run's paths.
        numbering: makes the steps' indices of their serial numbers.
        anchor: the first reading of the machine's clocks.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    reader = _Reader(JsonObject.decode(data, "MEMORY"), paths, numbering, anchor)
    memory = reader.memory()
    return MemoryDocument(memory, reader.left_out)


class _Reader:
    def __init__(
        self,
        document: JsonObject,
        paths: Sequence[str],
        numbering: StepNumbering,
        anchor: Mapping[str, int],
    ) -> None:
        self._document = document
        self._paths = paths
        self._numbering = numbering
        self._anchor = anchor
        self.left_out = 0

    def memory(self) -> Memory:
        events = self._document.document.get("out_of_memory", {})
        if not isinstance(events, dict):
            self.left_out += 1
            events = {}
        found = tuple(self._events(events.get("events", [])))
        return Memory(
            device=self._count("device", None),
            steps=self._count("steps", 0) or 0,
            lost=self._count("lost", 0) or 0,
            peak_bytes=self._count("peak_bytes", None),
            reserved_peak_bytes=self._count("reserved_peak_bytes", None),
            phases=dict(self._phases()),
            phases_lost=self._count("phases_lost", 0) or 0,
            outside_left_bytes=self._part(
                lambda: _median(self._document.document.get("outside_left_bytes"))
            ),
            points=self._points(),
            out_of_memory_count=max(
                len(found), self._part(lambda: _count(events, "count", 0)) or 0
            ),
            out_of_memory=found,
            notes=tuple(self._notes()),
        )

    def _part(self, read: Any) -> Any:
        """What `read` returns; None for what makes no sense."""
        try:
            return read()
        except (RunFileDamagedError, _Nonsense):
            self.left_out += 1
            return None

    def _count(self, key: str, default: int | None) -> int | None:
        value: int | None = self._part(lambda: _count(self._document.document, key, default))
        return value

    def _list(self, value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        self.left_out += 1
        return []

    def _phases(self) -> Iterator[tuple[str, PhaseMemory]]:
        for value in self._list(self._document.document.get("phases", [])):
            found = self._part(lambda value=value: self._phase(value))
            if found is not None:
                yield found

    def _phase(self, value: Any) -> tuple[str, PhaseMemory] | None:
        path = _count(_object(value), "path")
        if path >= len(self._paths):
            raise _Nonsense
        exact = value.get("peak_is_exact")
        if not isinstance(exact, bool):
            raise _Nonsense
        return self._paths[path], PhaseMemory(
            calls=_count(value, "calls"),
            steps=_count(value, "steps"),
            begin_bytes=_count(value, "begin_bytes"),
            end_bytes=_count(value, "end_bytes"),
            peak_bytes=_count(value, "peak_bytes"),
            peak_is_exact=exact,
            left_bytes=_median(value.get("left_bytes")),
            own_left_bytes=_median(value.get("own_left_bytes")),
        )

    def _points(self) -> NDArray[np.void]:
        points = []
        for value in self._list(self._document.document.get("points", [])):
            point = self._part(lambda value=value: _point(value))
            if point is None:
                continue
            step = self._numbering.index(point[0])
            # The numbers of the steps are made before it is known which of them will be dropped.
            if step is not None and step >= 0:
                points.append((step, *point[1:]))
        found = np.array(points, MEMORY_POINT_DTYPE)
        rising = np.diff(found["step"]) > 0
        if not rising.all() or len(found) > _MOST_POINTS:
            self.left_out += 1
            found = found[:0]
        return found

    def _events(self, events: Any) -> Iterator[OutOfMemory]:
        for value in self._list(events):
            found = self._part(lambda value=value: self._event(value))
            if found is not None:
                yield found

    def _event(self, value: Any) -> OutOfMemory:
        path = _count(_object(value), "path", None)
        if path is not None and path >= len(self._paths):
            raise _Nonsense
        return OutOfMemory(
            path=None if path is None else self._paths[path],
            step=_count(value, "step", None),
            module=_text(value, "module"),
            device=_count(value, "device"),
            request_bytes=_count(value, "request_bytes"),
            limit_bytes=_count(value, "limit_bytes"),
            free_bytes=_count(value, "free_bytes"),
            allocated_bytes=_count(value, "allocated_bytes", None),
            reserved_bytes=_count(value, "reserved_bytes", None),
            time_ns=self._time_ns(_count(value, "monotonic_ns", None)),
            settings=_text(value, "settings"),
        )

    def _notes(self) -> Iterator[str]:
        for value in self._list(self._document.document.get("notes", [])):
            note = self._part(lambda value=value: _text({"note": value}, "note"))
            if note is not None:
                yield note

    def _time_ns(self, monotonic_ns: int | None) -> int | None:
        if monotonic_ns is None or not {"monotonic_ns", "run_ns"} <= self._anchor.keys():
            return None
        return monotonic_ns - self._anchor["monotonic_ns"] + self._anchor["run_ns"]


class _Nonsense(Exception):
    """A value that no version has written."""


_REQUIRED = object()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Nonsense
    return value


def _count(value: dict[str, Any], key: str, default: Any = _REQUIRED) -> Any:
    """A number from 0 on. Without a default it has to be there."""
    number = value.get(key)
    if number is None and default is not _REQUIRED:
        return default
    if not is_count(number) or number >= _LIMIT:
        raise _Nonsense
    return number


def _text(value: dict[str, Any], key: str) -> str | None:
    text = value.get(key)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise _Nonsense
    return text


def _median(value: Any) -> MedianBytes | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise _Nonsense
    if not all(type(each) is int and abs(each) < _LIMIT for each in value):
        raise _Nonsense
    median, low, high = value
    if not low <= median <= high:
        raise _Nonsense
    return MedianBytes(median, low, high)


def _point(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise _Nonsense
    step, allocated, reserved = value
    if not is_count(step) or step >= _SERIAL_LIMIT:
        raise _Nonsense
    reserved = -1 if reserved is None else reserved
    if not is_count(allocated) or allocated >= _LIMIT:
        raise _Nonsense
    if reserved != -1 and (not is_count(reserved) or reserved >= _LIMIT):
        raise _Nonsense
    return step, allocated, reserved
