# SPDX-License-Identifier: Apache-2.0

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyinstrument_gpu.errors import (
    RunFileDamagedError,
    RunFileVersionError,
)
from pyinstrument_gpu.format.blocks import BlockType
from pyinstrument_gpu.format.framing import read_blocks
from pyinstrument_gpu.format.items import (
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    NONE,
    SPAN_ITEM,
    STREAM_ITEM,
)
from pyinstrument_gpu.format.state import DeviceState, OpenPhaseState, State
from pyinstrument_gpu.format.statistics import StatisticsDocument
from pyinstrument_gpu.model.device_clock import DeviceClock
from pyinstrument_gpu.model.device_timing_summary import DeviceTimingSummary
from pyinstrument_gpu.model.open_phase import OpenPhase
from pyinstrument_gpu.model.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.model.step_totals import StepTotals
from pyinstrument_gpu.model.steps import Step, Steps
from pyinstrument_gpu.model.stream import named_streams
from pyinstrument_gpu.model.thread import Thread
from pyinstrument_gpu.run import Run
from tests.helpers.encoders import (
    encode_json,
    encode_name,
    encode_state,
    encode_statistics,
    encode_thread,
)
from tests.helpers.made_recording import Recording
from tests.helpers.run_encoder import encode
from tests.helpers.run_truth import assert_true_spans
from tests.helpers.run_writer import RunWriter, pack_block, pack_file_header

RECORDING = Recording(seed=11)


def written(state: State | None, **logs: list[bytes]) -> Run:
    """The run of a STATE and some logs, each a list of items by the name of its type."""
    writer = RunWriter(run_id=1)
    for name, items in logs.items():
        writer.append(BlockType[name], items)
    if state is not None:
        writer.write_document(BlockType.STATE, encode_state(state))
    return Run.from_bytes(writer.data)


def span_item(**fields: int) -> bytes:
    item = np.zeros(1, SPAN_ITEM)
    item["step"] = NONE
    for name, value in fields.items():
        item[name] = value
    return item.tobytes()


def path_item(parent: int, name: int) -> bytes:
    return np.array([parent, name], dtype="<u4").tobytes()


ONE_PHASE = {
    "NAMES": [encode_name("a")],
    "PATHS": [path_item(NONE, 0)],
    "THREADS": [encode_thread(Thread(7, "main"))],
}


def assert_equal(got: Run, expected: Run) -> None:
    for name in vars(Run()):
        value, wanted = getattr(got, name), getattr(expected, name)
        if isinstance(wanted, np.ndarray):
            assert value.tobytes() == wanted.tobytes(), name
            assert value.dtype == wanted.dtype, name
        elif isinstance(wanted, Steps):
            assert value.array.tobytes() == wanted.array.tobytes(), name
        else:
            assert value == wanted, name


# What a recording process writes


def test_finished_recording() -> None:
    run = Run.from_bytes(RECORDING.final)

    assert run.complete
    assert run.notes == ()
    assert run.environment == {"host": "h11"}
    assert list(run.names) == RECORDING.names
    assert list(run.threads) == RECORDING.threads
    assert np.array_equal(run.spans, RECORDING.spans)
    assert np.array_equal(run.span_self_ns, RECORDING.self_ns)
    assert run.steps.array.tobytes() == RECORDING.steps.tobytes()
    assert dict(run.statistics) == RECORDING.fold_all(
        np.arange(len(RECORDING.spans)), np.arange(len(RECORDING.device_times))
    )
    assert run.step_totals == RECORDING.fold_steps(np.arange(len(RECORDING.steps)))
    assert run.duration_ns == RECORDING.states[-1].now_ns
    assert run.phases_recorded == len(RECORDING.spans)
    assert run.anchor == RECORDING.states[-1].anchor


@pytest.mark.parametrize("tick", range(len(RECORDING.versions) - 1))
def test_killed_recording(tick: int) -> None:
    state = RECORDING.states[tick]
    run = Run.from_bytes(RECORDING.versions[tick])

    assert not run.complete
    assert any("was not stopped" in note and "last sign of life" in note for note in run.notes)
    assert_true_spans(run, RECORDING, 0, state.spans)
    assert dict(run.statistics) == RECORDING.fold_all(
        np.arange(state.spans), np.arange(state.device_times)
    )
    known = RECORDING.timed_spans[: state.device_times]
    assert np.array_equal(np.flatnonzero(run.span_device_ns >= 0), np.sort(known))
    waiting = (run.spans["flags"] & SpanFlag.DEVICE) != 0
    waiting[known] = False
    unfinished = (run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED) != 0
    assert np.array_equal(unfinished, waiting)
    assert state.device is not None
    assert run.device_timing == state.device.timing
    assert run.pending_device_work == {
        run.paths[path]: count for path, count in state.device.pending
    }
    pending_paths = [run.paths[path] for path in run.spans["path"][unfinished].tolist()]
    assert run.pending_device_work == {
        path: pending_paths.count(path) for path in set(pending_paths)
    }
    assert run.step_totals == RECORDING.fold_steps(np.arange(state.steps))
    assert run.open_step is not None
    assert run.steps[-1] == run.open_step
    assert run.open_step.index == state.steps
    assert run.open_step.end_ns == -1
    assert run.open_phases == (
        OpenPhase(run.paths[0], 0, state.open_phases[0].begin_ns, run.open_step.index, 0),
    )


def test_history_that_made_room() -> None:
    recording = Recording(seed=12, max_slots=16)
    run = Run.from_bytes(recording.final)
    kept = len(run.spans)

    assert 0 < kept < len(recording.spans)
    assert_true_spans(run, recording, len(recording.spans) - kept, len(recording.spans))
    assert run.dropped["span_history"] == len(recording.spans) - kept
    device_times = run.dropped["device_history"]
    assert 0 < device_times < len(recording.device_times)
    known = recording.timed_spans[device_times:] - (len(recording.spans) - kept)
    timed = recording.device_times["duration_ns"][device_times:] >= 0
    assert np.array_equal(
        np.flatnonzero(run.span_device_ns >= 0), np.sort(known[timed & (known >= 0)])
    )
    assert dict(run.statistics) == recording.fold_all(
        np.arange(len(recording.spans)), np.arange(len(recording.device_times))
    )
    assert run.notes == (
        f"of the history, {len(recording.spans) - kept:,} spans made room for newer ones",
        f"of the history, {len(recording.steps) - len(run.steps):,} steps made room for newer ones",
        f"of the history, {device_times:,} device times made room for newer ones",
    )


def test_span_of_a_dropped_step_has_no_step() -> None:
    dropped = [np.array([serial], dtype="<u4").tobytes() for serial in (1, 3)]
    run = written(
        State(spans=5, step_drops=2),
        **ONE_PHASE,
        DROPPED_STEPS=dropped,
        SPANS=[span_item(step=serial) for serial in range(5)],
    )

    assert run.spans["step"].tolist() == [0, -1, 1, -1, 2]


def test_spans_whose_step_is_uncertain_are_left_out() -> None:
    spans = [span_item(step=serial) for serial in range(3)]
    run = written(State(spans=3, step_drops=1), **ONE_PHASE, SPANS=spans)

    assert len(run.spans) == 0
    assert "missing at the end of the history: 3 spans" in run.notes


def test_statistics_that_can_not_be_complete_say_so() -> None:
    run = written(State(final=True, spans=1, phases_recorded=5), **ONE_PHASE, SPANS=[span_item()])

    assert run.phases_recorded == 5
    assert "the statistics leave out 4 of the last spans" in run.notes
    assert "the statistics cover only the spans and steps that are in the file" in run.notes


def test_end_of_history_names_its_reason() -> None:
    run = written(State(final=True, error="No space left on device"))

    assert "the history ends early: No space left on device" in run.notes


def test_open_phase_of_an_unknown_path_is_left_out() -> None:
    phases = (OpenPhaseState(0, 0, 5, -1, 0), OpenPhaseState(0, 1, 6, -1, 1))
    run = written(State(open_phases=phases), **ONE_PHASE)

    assert run.open_phases == (OpenPhase("a", 0, 5, -1, 0),)


@pytest.mark.parametrize(
    "bad",
    [
        {"path": 1},
        {"thread": 1},
        {"host_begin_ns": -1},
        {"host_begin_ns": 2, "host_end_ns": 1},
        {"host_end_ns": 5, "self_ns": 6},
        {"self_ns": -2},
    ],
)
def test_history_ends_before_an_impossible_span(bad: dict[str, int]) -> None:
    spans = [span_item(host_end_ns=3), span_item(**bad), span_item()]
    run = written(State(spans=3), **ONE_PHASE, SPANS=spans)

    assert run.spans["host_end_ns"].tolist() == [3]
    assert "missing at the end of the history: 2 spans" in run.notes


# Device times


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
    assert any("without a place on the run's time axis: 1 device time" in n for n in run.notes)


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
    assert "left out: 2 device times of spans or streams that are lost" in run.notes
    assert "the statistics leave out 2 of the last device times" in run.notes
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
    device = DeviceState(DeviceTimingSummary(every=4, records=10, record_ns=1500), ((0, 3), (1, 2)))
    run = written(State(device=device), **ONE_PHASE)

    assert run.device_timing == DeviceTimingSummary(4, 10, 1500)
    assert run.pending_device_work == {"a": 3}  # the other path is lost
    assert written(State(), **ONE_PHASE).device_timing is None


def test_file_without_blocks() -> None:
    run = Run.from_bytes(pack_file_header(run_id=5))

    assert not run.complete
    assert "the state of the recording is missing or damaged" in run.notes


# What is refused


@pytest.mark.parametrize("data", [b"", b"\x89GPU", b"PK\x03\x04" * 100, bytes(5000)])
def test_not_a_run_file(data: bytes) -> None:
    with pytest.raises(RunFileDamagedError, match="not a run file"):
        Run.from_bytes(data)


def test_damaged_header() -> None:
    with pytest.raises(RunFileDamagedError, match="header"):
        Run.from_bytes(pack_file_header(1)[:40] + b"\1" + pack_file_header(1)[41:])


@pytest.mark.parametrize(("offset", "value"), [(8, 2), (16, 32768), (20, 8192)])
def test_unknown_format(offset: int, value: int) -> None:
    header = bytearray(RECORDING.final[:60])
    header[offset : offset + 4] = value.to_bytes(4, "little")
    header += zlib.crc32(header).to_bytes(4, "little")

    with pytest.raises(RunFileVersionError, match="use a newer one"):
        Run.from_bytes(header)


def test_newer_minor_version_and_unknown_blocks_are_read() -> None:
    header = bytearray(RECORDING.final[:60])
    header[12] = 9
    header += zlib.crc32(header).to_bytes(4, "little")
    run = Run.from_bytes(bytes(header) + RECORDING.final[64:])
    assert np.array_equal(run.spans, RECORDING.spans)

    unknown_block = pack_block(99, 1, 0, 0, 0, b"later")
    assert (
        Run.from_bytes(pack_file_header(1) + unknown_block).notes
        == Run.from_bytes(pack_file_header(1)).notes
    )


STATE: dict[str, Any] = {
    "now_ns": 1,
    "final": True,
    "spans": 0,
    "steps": 0,
    "device_times": 0,
    "step_drops": 0,
    "harvester_cpu_ns": 0,
    "phases_recorded": 0,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("now_ns", -1),
        ("now_ns", True),
        ("now_ns", 2**63),
        ("now_ns", None),
        ("final", 1),
        ("dropped", {"depth": "3"}),
        ("dropped", [1]),
        ("open", {}),
        ("open", [[0, 0, 0, -2, 0]]),
        ("open", [[0, 0, 0, 0]]),
        ("device_times", -1),
        ("device", 3),
        ("device", {"every": 0, "records": 1, "record_ns": 1}),
        ("device", {"every": 1, "records": 1}),
        ("device", {"every": 1, "records": 1, "record_ns": 1, "pending": {}}),
        ("device", {"every": 1, "records": 1, "record_ns": 1, "pending": [[0]]}),
        ("device", {"every": 1, "records": 1, "record_ns": 1, "pending": [[0, -1]]}),
        ("open_step", 3),
        ("open_step", {"serial": 1}),
        ("open_step", {"serial": 1, "thread": 0, "begin_ns": 0, "items": 1, "samples": "4"}),
        ("open_step", {"serial": 1, "thread": 0, "begin_ns": 0, "items": 1, "samples": math.inf}),
        ("error", 28),
    ],
)
def test_state_of_the_wrong_type(key: str, value: object) -> None:
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.STATE, encode_json(STATE))
    assert Run.from_bytes(writer.data).complete
    writer.write_document(BlockType.STATE, encode_json({**STATE, key: value}))

    with pytest.raises(RunFileDamagedError, match=r"the STATE.* makes no sense"):
        Run.from_bytes(writer.data)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{", b"[" * 100_000, b'{"now_ns":' + b"9" * 5000 + b"}"]
)
def test_document_that_is_no_json_object(content: bytes) -> None:
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.ENVIRONMENT, content)

    with pytest.raises(RunFileDamagedError, match="the ENVIRONMENT block"):
        Run.from_bytes(writer.data)


@pytest.mark.parametrize(
    ("log", "payload"),
    [
        ("NAMES", b"\x05\x00abc"),
        ("NAMES", b"\x05"),
        ("NAMES", b"\x01\x00\xff"),
        ("THREADS", bytes(8) + b"\x05\x00abc"),
        ("PATHS", b"\xff\xff\xff"),
        ("PATHS", path_item(0, 0)),
        ("DROPPED_STEPS", bytes(8)),
        ("SPANS", bytes(39)),
        ("DEVICE_TIMES", bytes(23)),
        ("STREAMS", bytes(15)),
        ("DEVICE_CLOCKS", bytes(31)),
    ],
)
def test_log_that_makes_no_sense(log: str, payload: bytes) -> None:
    with pytest.raises(RunFileDamagedError, match=f"{log}|a path of the run file"):
        written(None, **{**ONE_PHASE, log: [payload]})


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(24, 3, id="steps"),
        pytest.param(32, 3, id="complete steps"),
        pytest.param(48, 3, id="sampled steps"),
        pytest.param(56, 106, id="sampled time"),
        pytest.param(64, 0x7FF0 << 48, id="infinite samples"),
        pytest.param(72, 3, id="count"),
        pytest.param(80, 201, id="total above count times maximum"),
        pytest.param(80, 9, id="total below count times minimum"),
        pytest.param(88, 5000, id="sum of squares"),
        pytest.param(104, 6, id="minimum"),
        pytest.param(112, 200, id="maximum"),
        pytest.param(120, 2**63, id="number of buckets"),
        pytest.param(120, 1, id="fewer buckets"),
        pytest.param(128, 1920, id="bucket that does not exist"),
        pytest.param(128, 200, id="buckets out of order"),
        pytest.param(136, 0, id="empty bucket"),
        pytest.param(136, 2**63, id="huge bucket"),
        pytest.param(160, 3 << 32, id="scope"),
        pytest.param(168, 16, id="statistic of a phase"),
    ],
)
def test_statistics_that_contradict_themselves(offset: int, value: int) -> None:
    durations = Statistic.of(np.array([5, 100]))
    document = StatisticsDocument(
        spans=0,
        steps=0,
        device_times=0,
        step_totals=StepTotals(2, 2, 2, 2, 105, 64.0, durations),
        phases={(0, Scope.STEP): PhaseStatistics(host=durations)},
    )
    content = bytearray(encode_statistics(document))
    writer = RunWriter(run_id=1)
    writer.append(BlockType.NAMES, ONE_PHASE["NAMES"])
    writer.append(BlockType.PATHS, ONE_PHASE["PATHS"])
    writer.write_document(BlockType.STATISTICS, bytes(content))
    assert Run.from_bytes(writer.data).phases["a"].host == durations

    content[offset : offset + 8] = value.to_bytes(8, "little")
    writer.write_document(BlockType.STATISTICS, bytes(content))
    with pytest.raises(RunFileDamagedError, match="STATISTICS"):
        Run.from_bytes(writer.data)


def test_cut_off_statistics_are_refused() -> None:
    content = read_blocks(RECORDING.final).documents[BlockType.STATISTICS]
    for length in (0, 15, 100, len(content) - 1):
        writer = RunWriter(run_id=1)
        writer.write_document(BlockType.STATISTICS, content[:length])
        with pytest.raises(RunFileDamagedError, match="STATISTICS"):
            Run.from_bytes(writer.data)


def test_impossible_index_is_refused() -> None:
    block = pack_block(BlockType.STEPS, 1, 0, 0, 1 << 63, b"")
    with pytest.raises(
        RunFileDamagedError, match=r"a STEPS block .* begins at 9223372036854775808"
    ):
        Run.from_bytes(pack_file_header(1) + block)


def test_errors_of_load_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")

    with pytest.raises(RunFileDamagedError, match=r"notes\.txt: not a run file"):
        Run.load(path)
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "missing.gpurun")


# Any run


times = st.integers(0, 2**40)
counts = st.integers(0, 2**62)
texts = st.text(max_size=20) | st.sampled_from(("\ud800", "a/b", "%", "x" * 256))


@st.composite
def device_clocks(draw: st.DrawFn, device: int) -> DeviceClock:
    """A clock with up to four points."""
    count = draw(st.integers(1, 4))
    columns = (
        sorted(draw(st.sets(times, min_size=count, max_size=count))),
        sorted(draw(st.sets(times, min_size=count, max_size=count))),
        draw(st.lists(times, min_size=count, max_size=count)),
    )
    return DeviceClock(device, *(np.array(column, np.int64) for column in columns))


def place(
    clock: DeviceClock,
    spans: NDArray[np.void],
    device_ns: NDArray[np.int64],
    device_clock_ns: NDArray[np.int64],
) -> None:
    """Write where the stream times of a device are on the run's axis."""
    of_device = np.flatnonzero((spans["device"] == clock.device) & (device_ns >= 0))
    begin_ns = clock.on_run_axis(device_clock_ns[of_device])
    end_ns = clock.on_run_axis((device_clock_ns + device_ns)[of_device])
    known = (begin_ns >= 0) & (end_ns >= 0)
    spans["device_begin_ns"][of_device[known]] = begin_ns[known]
    spans["device_end_ns"][of_device[known]] = end_ns[known]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    names = draw(st.lists(texts, unique=True, min_size=1, max_size=5))
    name_ids = st.integers(0, len(names) - 1)
    paths: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 6))):
        path = (draw(st.integers(-1, len(paths) - 1)), draw(name_ids))
        if path not in paths:
            paths.append(path)
    threads = draw(st.lists(st.builds(Thread, counts, texts), min_size=1, max_size=3))
    path_ids, thread_ids = st.integers(0, len(paths) - 1), st.integers(0, len(threads) - 1)

    places = st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 77, 2**63]))
    streams = named_streams(draw(st.lists(places, max_size=3)))
    spans, self_ns, device_ns, device_clock_ns = [], [], [], []
    for _ in range(draw(st.integers(0, 12))):
        path_id, begin_ns, duration_ns = draw(path_ids), draw(times), draw(times)
        step, depth = draw(st.integers(-1, 9)), draw(st.integers(0, 65535))
        flags = draw(st.sampled_from([0, 1, 2, 3, 6, 7, 8]))
        stream = draw(st.integers(-1, len(streams) - 1))
        timed = stream >= 0 and not flags & SpanFlag.DEVICE_UNFINISHED and draw(st.booleans())
        device_ns.append(draw(times) if timed else -1)
        device_clock_ns.append(draw(times) if timed else -1)
        if not timed and not flags & SpanFlag.DEVICE:
            stream = -1  # such a span leaves nothing behind that could name a stream
        device = streams[stream].device if stream >= 0 else -1
        self_ns.append(draw(st.integers(-1, duration_ns)))
        spans.append(
            (
                *(paths[path_id][1], path_id, step, depth, draw(thread_ids), device, stream),
                *(begin_ns, begin_ns + duration_ns, -1, -1, -1, flags),
            )
        )
    steps = []
    for index in sorted(draw(st.sets(st.integers(0, 20)))):
        begin_ns, duration_ns = draw(times), draw(times)
        samples = draw(st.floats(0, 1e6) | st.just(math.nan))
        items, complete = draw(st.integers(0, 2**32 - 1)), draw(st.booleans())
        steps.append(
            (index, begin_ns, begin_ns + duration_ns, samples, items, complete, draw(thread_ids))
        )
    open_step = None
    if draw(st.booleans()):
        known_samples = draw(st.none() | st.floats(0, 1e6))
        open_step = Step(99, draw(times), -1, known_samples, draw(counts), False, draw(thread_ids))
    clocks = [draw(device_clocks(device)) for device in sorted(draw(st.sets(st.integers(0, 2))))]
    made = np.array(spans, dtype=SPAN_DTYPE)
    exact_ns, clock_ns = np.array(device_ns, np.int64), np.array(device_clock_ns, np.int64)
    for clock in clocks:
        place(clock, made, exact_ns, clock_ns)
    timing = None
    if draw(st.booleans()):
        timing = DeviceTimingSummary(draw(st.integers(1, 99)), draw(counts), draw(counts))
    run = Run(
        names=names,
        path_parents=[parent for parent, _ in paths],
        path_names=[name for _, name in paths],
        threads=threads,
        streams=streams,
        span_device_ns=exact_ns,
        span_device_clock_ns=clock_ns,
        device_clocks=clocks,
        device_timing=timing,
        environment=draw(st.dictionaries(texts, st.none() | st.integers() | texts, max_size=3)),
        dropped=draw(st.dictionaries(texts, counts, max_size=3)),
        spans=made,
        span_self_ns=np.array(self_ns, dtype=np.int64),
        steps=Steps.with_open(np.array(steps, dtype=STEP_DTYPE), open_step),
        open_step=open_step,
        complete=draw(st.booleans()),
        duration_ns=2**42,
        harvester_cpu_ns=draw(counts),
        anchor={"run_ns": draw(times)},
    )
    if timing is not None:
        pending = draw(st.dictionaries(st.sampled_from(run.paths), st.integers(1, 99), max_size=2))
        run.pending_device_work = pending
    run.open_phases = tuple(
        OpenPhase(run.paths[draw(path_ids)], draw(thread_ids), draw(times), step, 0)
        for step in draw(st.lists(st.integers(-1, 9), max_size=2))
    )
    return run


def with_whole_run_statistics(run: Run, host: Statistic) -> Run:
    """The run with statistics that its history does not hold."""
    return Run(
        names=run.names,
        path_parents=run.path_parents,
        path_names=run.path_names,
        spans=run.spans,
        span_self_ns=run.span_self_ns,
        threads=run.threads,
        streams=run.streams,
        span_device_ns=run.span_device_ns,
        span_device_clock_ns=run.span_device_clock_ns,
        device_clocks=run.device_clocks,
        statistics={(0, Scope.OUTSIDE): PhaseStatistics(host, host, host, host)},
        step_totals=StepTotals(host.count, 0, 9, host.count, host.total_ns, 2.5, host),
        phases_recorded=host.count + 7,
        duration_ns=2**42,
    )


@given(runs(), st.lists(times, min_size=1))
def test_saving_and_loading_gives_the_same_run(run: Run, durations_ns: list[int]) -> None:
    once = resaved(run)
    for name in ("names", "threads", "streams", "environment", "dropped", "open_phases"):
        assert getattr(once, name) == getattr(run, name)
    assert once.open_step == run.open_step
    once.notes = ()  # what is missing is found by loading
    assert_equal(once, run)

    whole = with_whole_run_statistics(run, Statistic.of(np.array(durations_ns)))
    loaded = resaved(whole)
    assert dict(loaded.statistics) == dict(whole.statistics)
    assert loaded.step_totals == whole.step_totals
    assert loaded.phases_recorded == whole.phases_recorded


def resaved(run: Run) -> Run:
    return Run.from_bytes(encode(run))
