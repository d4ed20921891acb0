# SPDX-License-Identifier: Apache-2.0
"""The log as it grows, from records made by hand: device times, metrics, and what comes late."""

import math
import struct
from typing import Any

import numpy as np

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import METRIC_ITEM, NONE
from pyinstrument_gpu.core.file.state import OpenStepState, State
from pyinstrument_gpu.sinks.feeder import RunTail
from pyinstrument_gpu.sinks.sink import RunUpdate
from tests.helpers.encoders import encode_state, encode_text

ENVIRONMENT = {"anchor": {"run_ns": 0, "realtime_ns": 5}}
HOST, DEVICE = 1, 3  # flags: on the step's thread; the same, and timed on the device


def record(block_type: BlockType, payload: bytes, first: int = 0) -> bytes:
    return struct.pack("<IIQ", block_type, len(payload), first) + payload


def names(*texts: str) -> bytes:
    paths = b"".join(struct.pack("<II", NONE, name) for name in range(len(texts)))
    return record(BlockType.NAMES, b"".join(map(encode_text, texts))) + record(
        BlockType.PATHS, paths
    )


def spans(first: int, *items: tuple[int, int, int, int]) -> bytes:
    """Step, path, host time and flags of each."""
    packed = (
        struct.pack("<qqqIIIHH", 0, host_ns, host_ns, step, path, 0, 0, flags)
        for step, path, host_ns, flags in items
    )
    return record(BlockType.SPANS, b"".join(packed), first)


def steps(*serials: int) -> bytes:
    packed = (struct.pack("<IIqqdII", serial, 0, serial, serial + 1, 1, 1, 1) for serial in serials)
    return record(BlockType.STEPS, b"".join(packed))


def device_times(*items: tuple[int, int]) -> bytes:
    """Span and duration of each; -1: it did not finish."""
    packed = (
        struct.pack("<Qqq", (7 << 40) | span, -1 if duration_ns < 0 else 9, duration_ns)
        for span, duration_ns in items
    )
    return record(BlockType.DEVICE_TIMES, b"".join(packed))


def metric_names(*texts: str, first: int = 0) -> bytes:
    return record(BlockType.METRIC_NAMES, b"".join(map(encode_text, texts)), first)


def metrics(*items: tuple[int, int, float, int, int]) -> bytes:
    """Update, time, value, name and step of each."""
    return record(BlockType.METRICS, np.array(list(items), METRIC_ITEM).tobytes())


def dropped_steps(*serials: int) -> bytes:
    return record(BlockType.DROPPED_STEPS, np.array(serials, np.uint32).tobytes())


def state(spans: int, open_step: int | None = None) -> bytes:
    step = (
        None
        if open_step is None
        else OpenStepState(serial=open_step, thread=0, begin_ns=0, items=0)
    )
    return record(
        BlockType.STATE, encode_state(State(spans=spans, phases_recorded=spans, open_step=step))
    )


def rows(update: RunUpdate) -> list[tuple[Any, ...]]:
    columns = ["step", "path", "count", "host_ns", "device_ns"]
    return [tuple(row) for row in update.phase_times[columns].tolist()]


def step_indices(update: RunUpdate) -> list[int]:
    return [int(index) for index in update.steps["index"]]


def test_step_comes_one_look_after_it_closed() -> None:
    """Its last spans may come behind it."""
    tail = RunTail(ENVIRONMENT)

    early = tail.look(names("a") + spans(0, (0, 0, 5, HOST)) + steps(0) + state(1))
    nothing = tail.look(b"")
    late = tail.look(spans(1, (0, 0, 6, HOST)) + state(2))

    assert step_indices(early) == step_indices(nothing) == []
    assert step_indices(late) == [0]
    assert rows(late) == [(0, 0, 2, 11, -1)]


def test_device_that_did_not_finish() -> None:
    tail = RunTail(ENVIRONMENT)
    tail.look(names("a") + spans(0, (0, 0, 5, DEVICE)) + steps(0) + state(1))

    assert rows(tail.look(device_times((0, -1)) + state(1))) == [(0, 0, 1, 5, -1)]


def test_span_that_only_some_of_a_path_were_timed_of() -> None:
    tail = RunTail(ENVIRONMENT)
    tail.look(names("a") + spans(0, (0, 0, 5, DEVICE), (0, 0, 6, HOST)) + steps(0) + state(2))

    assert rows(tail.look(device_times((0, 10)) + state(2))) == [(0, 0, 2, 11, -1)]


def test_metrics_come_at_once_with_the_steps_they_are_of() -> None:
    tail = RunTail(ENVIRONMENT)
    taken = metrics((1, 7, 0.5, 1, 0), (1, 7, math.nan, 0, 2)) + metric_names("a/b", "b%")
    update = tail.look(dropped_steps(1) + taken + state(0))

    assert update.metric_names == ("a/b", "b%")
    assert update.metrics[["update", "step", "host_ns", "name"]].tolist() == [
        (1, 0, 7, 1),
        (1, 1, 7, 0),
    ]
    np.testing.assert_array_equal(update.metrics["value"], [0.5, math.nan])
    assert update.metric_steps.tolist() == [0, 1]

    after = tail.look(metric_names("c", first=2) + metrics((9, 8, 2.0, 2, 2)) + state(0))
    assert after.metric_names == ("a/b", "b%", "c")
    assert after.metrics.tolist() == [(9, 1, 8, 2, 2.0)]
    assert len(tail.look(b"", final=True).metrics) == 0


def test_metrics_of_no_step_stand_at_the_last_that_had_ended() -> None:
    """Whether or not it was handed over; steps end one after their serial here."""
    tail = RunTail(ENVIRONMENT)
    nowhere = [(1, time_ns, 1.0, 0, NONE) for time_ns in (0, 1, 2, 3, 4)]
    first = tail.look(metric_names("a") + metrics(*nowhere) + steps(0, 2) + dropped_steps(1))
    tail.look(state(0))
    tail.look(state(0))
    later = tail.look(metrics((2, 4, 1.0, 0, NONE), (2, 9, 1.0, 0, 1)) + steps(3) + state(0))

    assert first.metrics["step"].tolist() == [-1] * 5
    assert first.metric_steps.tolist() == [-1, 0, 0, 1, 1]
    assert later.metrics["step"].tolist() == [-1, -1]
    assert later.metric_steps.tolist() == [2, 2]


def test_missed_spans_leave_out_the_steps_they_may_be_of() -> None:
    """Those up to the open one, and the next, which may have opened meanwhile."""
    tail = RunTail(ENVIRONMENT)
    tail.look(names("a") + steps(0) + spans(0, (1, 0, 5, DEVICE)) + state(9, open_step=1))
    everything = [(step, 0, 7, HOST) for step in range(1, 4)]
    tail.look(spans(9, *everything) + steps(1, 2, 3) + state(12))
    update = tail.look(b"", final=True)

    assert step_indices(update) == [1, 2, 3]
    assert rows(update) == [(3, 0, 1, 7, -1)]


def test_step_whose_spans_have_a_gap_has_no_times() -> None:
    """Too little would look like a fast step."""
    tail = RunTail(ENVIRONMENT)
    two_of_three = spans(0, (0, 0, 5, HOST)) + spans(2, (0, 0, 6, HOST))
    tail.look(names("a") + two_of_three + steps(0) + state(3))
    update = tail.look(b"", final=True)

    assert step_indices(update) == [0]
    assert rows(update) == []
