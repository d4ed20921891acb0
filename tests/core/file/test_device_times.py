# SPDX-License-Identifier: Apache-2.0


import numpy as np
import pytest

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import (
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    STREAM_ITEM,
)
from pyinstrument_gpu.core.file.state import DeviceTimingSummary, State
from pyinstrument_gpu.core.file.statistics import StatisticsDocument
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from tests.helpers.encoders import encode_statistics, pack_block, pack_file_header
from tests.helpers.run_items import ONE_PHASE, span_item, written
from tests.helpers.run_writer import RunWriter


def time_item(span: int, begin_ns: int, duration_ns: int, stream: int = 0, flags: int = 0) -> bytes:
    where = span | stream << 40 | flags << 56
    return np.array((where, begin_ns, duration_ns), DEVICE_TIME_ITEM).tobytes()


def clock_item(device: int, device_ns: int, run_ns: int, uncertainty_ns: int = 5) -> bytes:
    item = (device, 0, device_ns, run_ns, uncertainty_ns)
    return np.array(item, DEVICE_CLOCK_ITEM).tobytes()


def stream_item(device: int, handle: int) -> bytes:
    return np.array((handle, device, 0), STREAM_ITEM).tobytes()


def timed_run(times: list[bytes], state: State | None = None, **logs: list[bytes]) -> Run:
    """A run of four spans, the last without device timing, and the given device times."""
    spans = [span_item(host_end_ns=9, flags=flags) for flags in (2, 2, 3, 0)]
    return written(
        State(spans=4, device_times=len(times), phases_recorded=4) if state is None else state,
        **{
            **ONE_PHASE,
            "SPANS": spans,
            "STREAMS": [stream_item(0, 0), stream_item(1, 99), stream_item(0, 55)],
            "DEVICE_CLOCKS": [clock_item(0, 1000, 0), clock_item(0, 2000, 1000)],
            "DEVICE_TIMES": times,
            **logs,
        },
    )


def unfinished_spans(run: Run) -> list[int]:
    spans: list[int] = np.flatnonzero(run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED).tolist()
    return spans


def test_device_times_of_spans() -> None:
    run = timed_run([time_item(2, 1500, 30), time_item(0, 1100, 20, stream=2)])

    assert run.span_device_ns.tolist() == [20, -1, 30, -1]
    assert run.span_device_clock_ns.tolist() == [1100, -1, 1500, -1]
    columns = ("device", "stream", "device_begin_ns", "device_end_ns")
    assert [run.spans[column].tolist() for column in columns] == [
        [0, -1, 0, -1],
        [2, -1, 0, -1],
        [100, -1, 500, -1],
        [120, -1, 530, -1],
    ]
    assert [stream.name for stream in run.streams] == ["default stream", "stream 1", "stream 1"]
    assert unfinished_spans(run) == [1]
    assert run.phases["a"].device == Statistic.of(np.array([20, 30]))
    assert run.phases["a"].count == 4
    (clock,) = run.device_clocks
    assert (clock.device, clock.uncertainty_ns, clock.drift_ppm) == (0, 5, 0.0)


def test_device_without_clock_has_durations_and_no_place_on_the_axis() -> None:
    run = timed_run([time_item(0, 1100, 20, stream=1)])

    assert run.span_device_ns.tolist() == [20, -1, -1, -1]
    assert run.spans["device"].tolist() == [1, -1, -1, -1]
    assert (run.spans["device_begin_ns"] == -1).all()
    assert any("1 device times have no position on the time axis" in n for n in run.notes)


def test_streams_whose_first_are_lost_are_not_taken_for_others() -> None:
    block = pack_block(BlockType.STREAMS, 1, 0, 1, 5, stream_item(3, 3))
    assert Run.from_bytes(pack_file_header(1) + block).streams == ()


def test_work_that_was_given_up_is_unfinished_and_has_its_stream() -> None:
    state = State(final=True, spans=4, device_times=3)
    times = [time_item(0, -1, -1, flags=1), time_item(1, 0, 4), time_item(2, -1, -1, flags=1)]
    run = timed_run(times, state)

    assert unfinished_spans(run) == [0, 2]
    assert run.spans["stream"].tolist() == [0, 0, 0, -1]
    assert run.span_device_ns.tolist() == [-1, 4, -1, -1]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(State(spans=4, device_times=2), id="a device time was lost"),
        pytest.param(State(spans=0, device_times=1), id="written after the state"),
        pytest.param(
            State(spans=4, device_times=1, dropped={"device_failed": 2}), id="driver error"
        ),
    ],
)
def test_span_without_device_time_is_not_called_unfinished_without_proof(state: State) -> None:
    assert unfinished_spans(timed_run([time_item(0, 1000, 1)], state)) == []


def test_device_times_of_spans_and_streams_that_are_lost_are_left_out() -> None:
    times = [time_item(1, 1, 1), time_item(2, 1, 2, stream=3), time_item(4, 1, 4)]
    run = timed_run(times)

    assert run.span_device_ns.tolist() == [-1, 1, -1, -1]
    assert "2 device times were left out: their spans or streams are lost" in run.notes
    assert "the statistics do not include 2 of the last device times" in run.notes
    assert unfinished_spans(run) == []


@pytest.mark.parametrize(
    "bad",
    [
        time_item(1, -2, 5),
        time_item(1, 5, -1),
        time_item(1, 5, 1 << 61),
        time_item(0, 7, 7),  # of a span that an earlier one spoke of
    ],
)
def test_device_times_end_before_an_impossible_one(bad: bytes) -> None:
    run = timed_run([time_item(0, 1, 1), bad, time_item(2, 3, 3)])

    assert run.span_device_ns.tolist() == [1, -1, -1, -1]
    assert "missing at the end of the history: 2 device times" in run.notes


@pytest.mark.parametrize(
    "bad",
    [
        clock_item(0, 2000, 1500),
        clock_item(0, 2500, 1000),
        clock_item(0, 3000, 2000, uncertainty_ns=-1),
        clock_item(0, 1 << 61, 2000),
    ],
)
def test_clock_ends_before_an_impossible_point(bad: bytes) -> None:
    points = [clock_item(0, 1000, 0), clock_item(0, 2000, 1000), bad, clock_item(1, 5, 5)]
    run = timed_run([], DEVICE_CLOCKS=points)

    (clock,) = run.device_clocks
    assert clock.device_ns.tolist() == [1000, 2000]


def test_newer_device_times_add_to_the_statistics_once() -> None:
    writer = RunWriter(run_id=1)
    for name, items in ONE_PHASE.items():
        writer.append(BlockType[name], items)
    writer.append(BlockType.STREAMS, [stream_item(0, 0)])
    writer.append(BlockType.SPANS, [span_item(host_end_ns=9, flags=2)] * 3)
    writer.append(BlockType.DEVICE_TIMES, [time_item(span, 1, span + 1) for span in (2, 0, 1)])
    host, device = Statistic.of(np.array([9, 9])), Statistic.of(np.array([3]))
    document = StatisticsDocument(
        spans=2,
        steps=0,
        device_times=1,
        step_totals=Run().step_totals,
        phases={(0, Scope.OUTSIDE): PhaseStatistics(host=host, device=device)},
    )
    writer.write_document(BlockType.STATISTICS, encode_statistics(document))
    run = Run.from_bytes(writer.data)

    assert run.phases["a"].host == Statistic.of(np.array([9, 9, 9]))
    assert run.phases["a"].device == Statistic.of(np.array([3, 1, 2]))


def test_device_timing_and_pending_work() -> None:
    device = DeviceTimingSummary(4, 10, 1500, ((0, 3), (1, 2)))
    run = written(State(device=device), **ONE_PHASE)

    assert run.device_timing == DeviceTimingSummary(4, 10, 1500)
    assert run.pending_device_work == {"a": 3}  # the other path is lost
    assert written(State(), **ONE_PHASE).device_timing is None
