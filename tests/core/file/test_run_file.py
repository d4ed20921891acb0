# SPDX-License-Identifier: Apache-2.0
"""What a recording process writes."""

import numpy as np
import pytest
from msgspec.structs import replace

from pyinstrument_gpu.core.file.state import OpenPhaseState, State
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from tests.helpers.encoders import pack_file_header
from tests.helpers.made_recording import Recording
from tests.helpers.run_items import ONE_PHASE, span_item, written
from tests.helpers.run_truth import assert_true_spans

RECORDING = Recording(seed=11)


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
    assert run.collectives.events.tobytes() == RECORDING.collectives.tobytes()
    assert (run.collectives.groups, run.collectives.missed) == (tuple(RECORDING.groups), 0)
    assert [stall.step for stall in run.stalls] == [7, 11]


@pytest.mark.parametrize("tick", range(len(RECORDING.versions) - 1))
def test_killed_recording(tick: int) -> None:
    state = RECORDING.states[tick]
    run = Run.from_bytes(RECORDING.versions[tick])

    assert not run.complete
    assert any("was not stopped" in note and "last heartbeat" in note for note in run.notes)
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
    assert run.device_timing == replace(state.device, pending=())
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
    spans, steps = len(recording.spans) - kept, len(recording.steps) - len(run.steps)
    assert run.notes == (
        f"the oldest {spans:,} spans were removed from the history to make room",
        f"the oldest {steps:,} steps were removed from the history to make room",
        f"the oldest {device_times:,} device times were removed from the history to make room",
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
    assert "the statistics do not include 4 of the last spans" in run.notes
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


def test_file_without_blocks() -> None:
    run = Run.from_bytes(pack_file_header(run_id=5))

    assert not run.complete
    assert "the state of the recording is missing or damaged" in run.notes
