# SPDX-License-Identifier: Apache-2.0
"""The payloads of a run file's blocks. See docs/run-file.md for their layout.

A decoder takes bytes whose checksum was right. What it cannot make sense of was not written by any
known version, and is refused with `RunFileDamagedError`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from pyinstrument_gpu.errors import RunFileDamagedError
from pyinstrument_gpu.model.device_timing_summary import DeviceTimingSummary
from pyinstrument_gpu.model.statistics import (
    BUCKET_COUNT,
    PhaseStatistics,
    Scope,
    Statistic,
    bucket_bounds,
)
from pyinstrument_gpu.model.step_totals import StepTotals
from pyinstrument_gpu.model.thread import Thread

NONE = 0xFFFFFFFF
"""No step, no parent."""

PATH_ITEM = np.dtype([("parent", "<u4"), ("name", "<u4")])
DROPPED_STEP_ITEM = np.dtype("<u4")
STEP_ITEM = np.dtype(
    [
        ("serial", "<u4"),
        ("thread", "<u4"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("samples", "<f8"),
        ("items", "<u4"),
        ("flags", "<u4"),
    ]
)
SPAN_ITEM = np.dtype(
    [
        ("host_begin_ns", "<i8"),
        ("host_end_ns", "<i8"),
        ("self_ns", "<i8"),
        ("step", "<u4"),
        ("path", "<u4"),
        ("thread", "<u4"),
        ("depth", "<u2"),
        ("flags", "<u2"),
    ]
)
METRIC_ITEM = np.dtype(
    [
        ("update", "<u8"),
        ("host_ns", "<i8"),
        ("value", "<f8"),
        ("name", "<u4"),
        ("step", "<u4"),
    ]
)
STEP_COMPLETE = 1
DEVICE_TIME_ITEM = np.dtype([("where", "<u8"), ("begin_ns", "<i8"), ("duration_ns", "<i8")])
SPAN_INDEX_BITS = 40
"""The lowest bits of `where` are a span's index; then come 16 bits of its stream, 8 of flags."""
NO_STREAM = 0xFFFF
TIME_UNFINISHED = 1
STREAM_ITEM = np.dtype([("handle", "<u8"), ("device", "<u4"), ("flags", "<u4")])
DEVICE_CLOCK_ITEM = np.dtype(
    [
        ("device", "<u4"),
        ("pad", "<u4"),
        ("device_ns", "<i8"),
        ("run_ns", "<i8"),
        ("uncertainty_ns", "<i8"),
    ]
)

_NAME = struct.Struct("<H")
_THREAD = struct.Struct("<QH")
_WATERMARKS = struct.Struct("<QQQ")
_STEP_SUMS = struct.Struct("<QQQQQd")
_ROW = struct.Struct("<IIII")
_MEASURE = struct.Struct("<QQQQQQQ")
_MEASURE_NAMES = ("host", "self_host", "device", "blocked")
# No run counts more; the sum of a histogram's counts then stays within 64 bits.
_COUNT_LIMIT = 1 << 52
_INTEGER_LIMIT = 1 << 63


def decode_names(payload: memoryview) -> list[str]:
    names = []
    offset = 0
    while offset < len(payload):
        (length,) = _unpack(_NAME, payload, offset, "NAMES")
        offset += _NAME.size
        names.append(_text(payload[offset : offset + length], length, "NAMES"))
        offset += length
    return names


def decode_threads(payload: memoryview) -> list[Thread]:
    threads = []
    offset = 0
    while offset < len(payload):
        native_id, length = _unpack(_THREAD, payload, offset, "THREADS")
        offset += _THREAD.size
        threads.append(
            Thread(native_id, _text(payload[offset : offset + length], length, "THREADS"))
        )
        offset += length
    return threads


class OpenStepState(NamedTuple):
    """The step that is open, with its serial number."""

    serial: int
    thread: int
    begin_ns: int
    samples: float | None
    items: int


class OpenPhaseState(NamedTuple):
    """A phase that is open, with the serial number of its step (-1 none)."""

    thread: int
    path: int
    begin_ns: int
    step_serial: int
    depth: int


class DeviceState(NamedTuple):
    """What STATE says of device timing; `pending` are pairs of a path and a number of spans."""

    timing: DeviceTimingSummary
    pending: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class State:
    """The STATE document. Its defaults are those of a run of which nothing is known."""

    now_ns: int = 0
    final: bool = False
    anchor: Mapping[str, int] = field(default_factory=dict)
    spans: int = 0
    steps: int = 0
    device_times: int = 0
    step_drops: int = 0
    metrics: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    harvester_cpu_ns: int = 0
    phases_recorded: int = 0
    open_step: OpenStepState | None = None
    open_phases: tuple[OpenPhaseState, ...] = ()
    device: DeviceState | None = None
    error: str | None = None


def decode_environment(data: bytes) -> dict[str, Any]:
    environment = _json_object(data, "ENVIRONMENT")
    if not isinstance(environment.get("overhead", {}), dict):
        raise _damaged("ENVIRONMENT", f"overhead = {environment['overhead']!r} is no object")
    return environment


def decode_state(data: bytes) -> State:
    document = _json_object(data, "STATE")
    fields = _Fields(document, "STATE")
    open_step, device = document.get("open_step"), document.get("device")
    return State(
        now_ns=fields.integer("now_ns"),
        final=fields.boolean("final"),
        anchor=fields.integers("anchor"),
        spans=fields.integer("spans"),
        steps=fields.integer("steps"),
        device_times=fields.integer("device_times"),
        step_drops=fields.integer("step_drops"),
        metrics=fields.integer("metrics") if "metrics" in document else 0,
        dropped=fields.integers("dropped"),
        harvester_cpu_ns=fields.integer("harvester_cpu_ns"),
        phases_recorded=fields.integer("phases_recorded"),
        open_step=None if open_step is None else _open_step(open_step),
        open_phases=tuple(_open_phase(phase) for phase in fields.list("open")),
        device=None if device is None else _device_state(device),
        error=fields.optional_text("error"),
    )


@dataclass(frozen=True)
class StatisticsDocument:
    """The STATISTICS document: statistics of all spans, steps and device times below three indices.

    The device measures are those of the device times.
    """

    spans: int
    steps: int
    device_times: int
    step_totals: StepTotals
    phases: Mapping[tuple[int, Scope], PhaseStatistics]


def decode_statistics(data: bytes) -> StatisticsDocument:
    where = "STATISTICS"
    spans, steps, device_times = _unpack(_WATERMARKS, data, 0, where)
    count, complete, items, sampled, sampled_ns, samples = _unpack(
        _STEP_SUMS, data, _WATERMARKS.size, where
    )
    duration, offset = _decode_measure(data, _WATERMARKS.size + _STEP_SUMS.size)
    totals = StepTotals(count, complete, items, sampled, sampled_ns, samples, duration)
    if not (
        max(complete, sampled) <= count == duration.count
        and sampled_ns <= duration.total_ns
        and math.isfinite(samples)
    ):
        raise _damaged(where, f"the totals of {count} steps contradict themselves")
    phases = {}
    while offset < len(data):
        path, scope, mask, _ = _unpack(_ROW, data, offset, where)
        if scope >= len(Scope) or mask >> len(_MEASURE_NAMES) or (path, scope) in phases:
            raise _damaged(where, f"a row has {path = }, {scope = }, {mask = :#x}")
        offset += _ROW.size
        measures: dict[str, Statistic | None] = {}
        for bit, name in enumerate(_MEASURE_NAMES):
            if mask >> bit & 1:
                measure, offset = _decode_measure(data, offset)
                measures[name] = measure if measure.count else None
        phases[path, Scope(scope)] = PhaseStatistics(**measures)
    return StatisticsDocument(spans, steps, device_times, totals, phases)


def _decode_measure(data: bytes, offset: int) -> tuple[Statistic, int]:
    count, total_ns, squares_low, squares_high, min_ns, max_ns, buckets = _unpack(
        _MEASURE, data, offset, "STATISTICS"
    )
    offset += _MEASURE.size
    if buckets > BUCKET_COUNT or offset + 16 * buckets > len(data):
        raise _damaged("STATISTICS", f"a measure has {buckets} buckets")
    pairs = np.frombuffer(data, dtype="<u8", count=2 * buckets, offset=offset)
    indices, counts = pairs[0::2], pairs[1::2]
    measure = Statistic(
        count=count,
        total_ns=total_ns,
        sum_of_squares=squares_low + (squares_high << 64),
        min_ns=min_ns,
        max_ns=max_ns,
        bucket_indices=indices.astype(np.int64),
        bucket_counts=counts.astype(np.int64),
    )
    if not (
        count < _COUNT_LIMIT
        and bool((indices < BUCKET_COUNT).all() and (counts < _COUNT_LIMIT).all())
        and bool((measure.bucket_counts > 0).all())
        and bool((np.diff(measure.bucket_indices) > 0).all())
        and int(measure.bucket_counts.sum()) == count
        and _sums_agree(measure)
    ):
        raise _damaged("STATISTICS", f"a measure of {count} durations contradicts itself")
    return measure, offset + 16 * buckets


def _sums_agree(measure: Statistic) -> bool:
    count, total_ns, min_ns, max_ns = (
        measure.count,
        measure.total_ns,
        measure.min_ns,
        measure.max_ns,
    )
    if not count:
        return (total_ns, measure.sum_of_squares, min_ns, max_ns) == (0, 0, 0, 0)
    first_low, first_high = bucket_bounds(int(measure.bucket_indices[0]))
    last_low, last_high = bucket_bounds(int(measure.bucket_indices[-1]))
    return (
        first_low <= min_ns <= first_high
        and last_low <= max_ns <= last_high
        and count * min_ns <= total_ns <= count * max_ns
        and count * measure.sum_of_squares >= total_ns**2
    )


class _Fields:
    """Typed access to a JSON object, with errors that name the key."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self._document = document
        self._where = where

    def integer(self, key: str) -> int:
        value = self._document.get(key)
        if not _is_count(value):
            raise self._wrong(key, "a non-negative integer")
        return value

    def boolean(self, key: str) -> bool:
        value = self._document.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def integers(self, key: str) -> dict[str, int]:
        value = self._document.get(key, {})
        if not isinstance(value, dict) or not all(map(_is_count, value.values())):
            raise self._wrong(key, "an object of non-negative integers")
        return value

    def list(self, key: str) -> Iterable[Any]:
        value = self._document.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def optional_text(self, key: str) -> str | None:
        value = self._document.get(key)
        if not isinstance(value, (str, type(None))):
            raise self._wrong(key, "a text or null")
        return value

    def _wrong(self, key: str, expected: str) -> RunFileDamagedError:
        return _damaged(self._where, f"{key} = {self._document.get(key)!r} should be {expected}")


def _open_step(value: Any) -> OpenStepState:
    if not isinstance(value, dict):
        raise _damaged("STATE", f"open_step = {value!r} should be an object or null")
    fields = _Fields(value, "STATE open_step")
    samples = value.get("samples")
    if samples is not None and not (_is_number(samples) and math.isfinite(samples)):
        raise _damaged("STATE open_step", f"{samples = } should be a number or null")
    return OpenStepState(
        serial=fields.integer("serial"),
        thread=fields.integer("thread"),
        begin_ns=fields.integer("begin_ns"),
        samples=None if samples is None else float(samples),
        items=fields.integer("items"),
    )


def _open_phase(value: Any) -> OpenPhaseState:
    if isinstance(value, list) and len(value) == len(OpenPhaseState._fields):
        phase = OpenPhaseState(*value)
        step_serial = 0 if phase.step_serial == -1 else phase.step_serial
        if all(map(_is_count, phase._replace(step_serial=step_serial))):
            return phase
    raise _damaged(
        "STATE", f"open holds {value!r}, which is not [thread, path, begin_ns, step, depth]"
    )


def _device_state(value: Any) -> DeviceState:
    if not isinstance(value, dict):
        raise _damaged("STATE", f"device = {value!r} should be an object or null")
    fields = _Fields(value, "STATE device")
    timing = DeviceTimingSummary(
        every=fields.integer("every"),
        records=fields.integer("records"),
        record_ns=fields.integer("record_ns"),
    )
    if not timing.every:
        raise _damaged("STATE device", "every = 0 should be at least 1")
    return DeviceState(timing, tuple(_pending(entry) for entry in fields.list("pending")))


def _pending(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)):
        return value[0], value[1]
    raise _damaged("STATE device", f"pending holds {value!r}, which is not [path, count]")


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _INTEGER_LIMIT


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _damaged(where, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(where, f"it holds a {type(value).__name__}, not an object")
    return value


def _unpack(layout: struct.Struct, data: bytes | memoryview, offset: int, where: str) -> Any:
    if offset + layout.size > len(data):
        raise _damaged(where, "it ends in the middle of an item")
    return layout.unpack_from(data, offset)


def _text(data: memoryview, length: int, where: str) -> str:
    if len(data) < length:
        raise _damaged(where, "it ends in the middle of a name")
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _damaged(where, str(error)) from error


def _damaged(where: str, reason: str) -> RunFileDamagedError:
    return RunFileDamagedError(f"the {where} block of the run file makes no sense: {reason}")
