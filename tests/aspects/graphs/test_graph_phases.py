# SPDX-License-Identifier: Apache-2.0
"""Phases inside CUDA graphs, on the simulated driver, whose truth is known."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.graphs import watch
from pyinstrument_gpu.aspects.graphs.data import UNKNOWN_STEP, GraphPhases
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.document import document_of
from tests.helpers.device_program import READING_NS, Program
from tests.helpers.driver_calls import driver
from tests.helpers.fake_graphs import FakeCudaGraph
from tests.helpers.simulated_cuda import Result, SimulatedCudaError
from tests.helpers.spans import dropped_of
from tests.helpers.threads import on_thread

TICK_NS = 32
FORWARD_NS, BACKWARD_NS = 1_600_000, 3_200_000
"""Multiples of the clock's steps, so that times are exact."""


def capture(graph: FakeCudaGraph) -> None:
    """Two phases next to each other, in a third."""
    with graph.capturing(), gpu_phase("model"):
        with gpu_phase("forward"):
            graph.stream.launch(FORWARD_NS)
        with gpu_phase("backward"):
            graph.stream.launch(BACKWARD_NS)


def replay(program: Program, graph: FakeCudaGraph, steps: int, apart_ns: int = 10_000) -> None:
    for _ in range(steps):
        with gpu_step(), gpu_phase("train"):
            program.cuda.advance(apart_ns)
            graph.replay()


def phases_of(run: Run) -> GraphPhases:
    assert run.graph_phases is not None
    return run.graph_phases


def times_of(run: Run, path: str) -> list[int]:
    runs = phases_of(run).runs
    times: list[int] = runs["duration_ns"][runs["path"] == run.paths.index(path)].tolist()
    return times


def test_each_replay_has_the_times_of_its_phases_and_their_step(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.recording() as recording:
        capture(graph)
        replay(program, graph, 20)
        program.settle(recording)
    run, phases = recording.run, phases_of(recording.run)
    assert times_of(run, "train/model/forward") == [FORWARD_NS] * 20
    assert times_of(run, "train/model/backward") == [BACKWARD_NS] * 20
    assert times_of(run, "train/model") == [FORWARD_NS + BACKWARD_NS] * 20
    forward = phases.runs[phases.runs["path"] == run.paths.index("train/model/forward")]
    assert forward["step"].tolist() == list(range(20))
    assert [(one.marks, one.replays, one.is_ambiguous) for one in phases.graphs] == [(3, 20, False)]
    assert {one.path: (one.count, one.lost) for one in phases.phases} == dict.fromkeys(
        ("train/model", "train/model/forward", "train/model/backward"), (20, 0)
    )
    assert dropped_of(run) == {}
    # They are no spans: the host was not there.
    assert {run.paths[path] for path in run.spans["path"]} == {
        "train",
        "model",
        "model/forward",
        "model/backward",
    }
    assert not {path for path in run.phases if path.startswith("train/")}


def test_a_phase_has_its_place_on_the_axis_of_the_run(
    program: Program, graph: FakeCudaGraph
) -> None:
    program.cuda.devices[0].set_clock(offset_ns=5_000_000_000, drift_ppm=40)
    with program.settled() as recording:
        capture(graph)
        for _ in range(30):  # until the capture is long over and the clocks have been compared
            program.cuda.advance(95_000_000)
            recording.flush(0)
        called_ns = program.cuda.host_ns - program.zero_ns
        graph.replay()
    phases = phases_of(recording.run)
    begin_ns = int(phases.runs["device_begin_ns"].min())
    clocks_ns = recording.run.device_clocks[0].uncertainty_ns + phases.uncertainty_ns
    assert 0 < phases.uncertainty_ns < 5_000
    assert abs(begin_ns - called_ns) <= clocks_ns + 2 * TICK_NS + READING_NS


def test_a_thousand_replays_ahead_of_the_harvest_cost_the_oldest_and_are_counted(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled() as recording:
        capture(graph)
        program.settle(recording)
        replay(program, graph, 1_000, apart_ns=0)  # none has ended at a harvest meanwhile
    run, phases = recording.run, phases_of(recording.run)
    assert dropped_of(run) == {"device_graph_replays": 3 * (1_000 - 256)}
    assert {(one.count, one.lost) for one in phases.phases} == {(256, 744)}
    assert sorted(set(phases.runs["step"].tolist())) == list(range(744, 1_000))
    assert times_of(run, "train/model/forward") == [FORWARD_NS] * 256


def test_a_host_that_runs_ahead_loses_nothing_where_the_device_is_slow(
    program: Program, graph: FakeCudaGraph
) -> None:
    """The ring is as long as what runs between two harvests, however far ahead the host is."""
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 1_000)
        for _ in range(60):
            program.cuda.advance(95_000_000)
            recording.flush(0)
    assert times_of(recording.run, "train/model/forward") == [FORWARD_NS] * 1_000
    assert sorted(set(phases_of(recording.run).runs["step"].tolist())) == list(range(1_000))
    assert dropped_of(recording.run) == {}


def test_an_invalidated_capture_is_the_program_s_affair(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled() as recording:
        with pytest.raises(SimulatedCudaError, match="INVALIDATED"), graph.capturing():
            with gpu_phase("before"):
                graph.stream.launch(1_000)
            event = driver.event()
            assert driver.record(event, graph.stream) == Result.SUCCESS
            assert driver.query(event) == Result.CAPTURED_EVENT
            with gpu_phase("after"):
                pass
        capture(graph)
        replay(program, graph, 3)
    assert program.cuda.captures_invalidated == 1
    assert times_of(recording.run, "train/model/forward") == [FORWARD_NS] * 3
    assert dropped_of(recording.run) == {"device_capturing": 1}


def test_no_mark_comes_between_a_kernel_and_one_that_may_begin_before_its_end(
    program: Program, graph: FakeCudaGraph
) -> None:
    """The second waits for the end of its dependency where it needs that: a mark would be ended."""
    with program.settled() as recording:
        with graph.capturing(), gpu_phase("around"):
            graph.stream.launch(FORWARD_NS)
            graph.stream.begin_next_early()
            with gpu_phase("early"):
                graph.stream.launch(FORWARD_NS)
        replay(program, graph, 2)
    assert graph.graph is not None
    assert graph.graph.entries == 2 + 2
    assert program.cuda.count("cuStreamGetCaptureInfo", Result.LOSSY_QUERY) == 1
    assert times_of(recording.run, "train/around") == [2 * FORWARD_NS] * 2
    assert dropped_of(recording.run) == {"device_capturing": 1}


def test_a_phase_that_is_open_across_the_end_of_a_capture_has_no_times(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled() as recording:
        across = gpu_phase("across")
        with graph.capturing():
            across.begin()
            with gpu_phase("inside"):
                graph.stream.launch(FORWARD_NS)
        across.end()
        graph.replay()
    run = recording.run
    assert times_of(run, "across/inside") == [FORWARD_NS]
    assert [one.path for one in phases_of(run).phases] == ["across/inside"]
    assert dropped_of(run) == {"device_capturing": 1}


def test_phases_around_a_capture_are_not_those_around_its_replays(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled() as recording:
        with gpu_phase("warm-up"), gpu_step():
            capture(graph)
        replay(program, graph, 2)
    assert times_of(recording.run, "train/model/forward") == [FORWARD_NS] * 2


def test_two_streams_in_one_capture(program: Program, graph: FakeCudaGraph) -> None:
    side = program.cuda.devices[0].create_stream()
    fork, join = driver.event(), driver.event()
    with program.settled() as recording:
        with graph.capturing():
            with gpu_phase("main"):
                graph.stream.launch(FORWARD_NS)
            driver.record(fork, graph.stream)
            side.wait_event(fork)
            with side.as_current():
                with gpu_phase("side"):
                    side.launch(BACKWARD_NS)
                changes = gpu_phase("changes")
                changes.begin()
            with graph.stream.as_current():
                changes.end()
            driver.record(join, side)
            graph.stream.wait_event(join)
        graph.replay()
    run = recording.run
    assert times_of(run, "main") == [FORWARD_NS]
    assert times_of(run, "side") == [BACKWARD_NS]
    assert dropped_of(run) == {"device_stream_changed": 1}


@pytest.mark.parametrize("joined", ["by an event of the phase", "in the phase", "before it"])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_phase_that_ends_behind_the_join_of_its_stream_leaves_the_capture_valid(
    program: Program, graph: FakeCudaGraph, joined: str, is_recorded: bool
) -> None:
    main, side = graph.stream, program.cuda.devices[0].create_stream()
    fork, join = driver.event(), driver.event()
    with program.settled() if is_recorded else contextlib.nullcontext() as recording:
        with graph.capturing():  # ends with CAPTURE_UNJOINED if a mark of ours is not joined
            main.launch(FORWARD_NS)
            driver.record(fork, main)
            side.wait_event(fork)
            with side.as_current():
                if joined == "before it":
                    side.launch(BACKWARD_NS)
                    driver.record(join, side)
                    main.wait_event(join)
                with gpu_phase("outer"), gpu_phase("side"):
                    if joined != "before it":
                        side.launch(BACKWARD_NS)
                        driver.record(join, side)
                    if joined == "in the phase":
                        main.wait_event(join)
                if joined == "by an event of the phase":
                    main.wait_event(join)
            with main.as_current(), gpu_phase("main"):
                main.launch(FORWARD_NS)
        graph.replay()
    if recording is not None:
        assert dropped_of(recording.run) == {}
        assert times_of(recording.run, "main") == [FORWARD_NS]
        side_ns = 0 if joined == "before it" else BACKWARD_NS
        assert times_of(recording.run, "outer") == [side_ns]
        assert times_of(recording.run, "outer/side") == [side_ns]
        assert [one.marks for one in phases_of(recording.run).graphs] == [
            3 if joined == "before it" else 4
        ]


def test_a_capture_goes_on_where_pytorch_can_not_tell_its_stream(
    program: Program, graph: FakeCudaGraph
) -> None:
    """It then sets a Python error, which takes the GIL."""
    with program.settled() as recording:
        program.cuda.fail_current_stream()
        capture(graph)
        program.cuda.fail_current_stream(False)
        graph.replay()
    assert graph.graph is not None
    assert graph.graph.entries == 2
    assert recording.run.graph_phases is None


def test_phases_next_to_each_other_on_a_side_stream_share_their_marks(
    program: Program, graph: FakeCudaGraph
) -> None:
    side = program.cuda.devices[0].create_stream()
    fork, join = driver.event(), driver.event()
    with program.settled() as recording:
        with graph.capturing():
            driver.record(fork, graph.stream)
            side.wait_event(fork)
            with side.as_current():
                with gpu_phase("first"):
                    side.launch(FORWARD_NS)
                with gpu_phase("second"):
                    side.launch(BACKWARD_NS)
            driver.record(join, side)
            graph.stream.wait_event(join)
        graph.replay()
    assert times_of(recording.run, "first") == [FORWARD_NS]
    assert times_of(recording.run, "second") == [BACKWARD_NS]
    assert [one.marks for one in phases_of(recording.run).graphs] == [3]


def test_the_next_recording_has_the_replays_of_an_older_graph(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled():
        capture(graph)
        replay(program, graph, 2)
    replay(program, graph, 5)  # nobody records them
    with program.settled() as second:
        # Those five have not run yet: they are none of this recording's.
        replay(program, graph, 3)
    assert times_of(second.run, "train/model/forward") == [FORWARD_NS] * 3
    assert sorted(set(phases_of(second.run).runs["step"].tolist())) == [0, 1, 2]
    assert set(phases_of(second.run).runs["run"].tolist()) == {8, 9, 10}
    assert dropped_of(second.run) == {}


def test_replays_on_another_thread_have_its_phases_around_them(
    program: Program, graph: FakeCudaGraph
) -> None:
    context = program.cuda.current_context

    def replays() -> None:
        program.cuda.make_current(context)
        with gpu_phase("worker"):
            graph.replay()

    with program.recording() as recording:
        capture(graph)
        with gpu_step():
            on_thread(replays)
        graph.replay()
        program.settle(recording)
    runs = phases_of(recording.run).runs
    assert times_of(recording.run, "worker/model/forward") == [FORWARD_NS]
    assert times_of(recording.run, "model/forward") == [FORWARD_NS]
    assert sorted(set(zip(runs["run"].tolist(), runs["step"].tolist(), strict=True))) == [
        (1, 0),
        (2, -1),
    ]


def test_what_a_killed_process_leaves_is_a_prefix(
    program: Program, graph: FakeCudaGraph, tmp_path: Path
) -> None:
    left = tmp_path / "left.pig"
    with program.recording(path=tmp_path / "run.pig") as recording:
        capture(graph)
        replay(program, graph, 5)
        program.settle(recording)
        program.cuda.advance(2_000_000_000)
        recording.snapshot()
        left.write_bytes((tmp_path / "run.pig").read_bytes())
        replay(program, graph, 5)
        program.settle(recording)
    whole, prefix = phases_of(recording.run).runs, phases_of(Run.load(left)).runs
    assert len(whole) == 2 * len(prefix) == 30
    assert np.array_equal(
        whole[:15][["duration_ns", "run", "step"]], prefix[["duration_ns", "run", "step"]]
    )


def test_two_executables_of_one_graph_are_ambiguous(program: Program, graph: FakeCudaGraph) -> None:
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 2)
        program.settle(recording)
        assert graph.graph is not None
        graph.graph.launch(graph.stream)  # by another executable, of which nobody has told
        program.settle(recording)
        replay(program, graph, 2)
    run = recording.run
    assert times_of(run, "train/model/forward") == [FORWARD_NS] * 2
    assert phases_of(run).graphs[0].is_ambiguous
    assert dropped_of(run)["device_graph_ambiguous"] >= 3
    assert "are left out: nodes ran" in run.report(verbose=True, color=False)


def test_a_graph_inside_another_one_is_ambiguous(program: Program, graph: FakeCudaGraph) -> None:
    """Its marks then run with either."""
    outer = FakeCudaGraph(graph.stream)
    with program.settled() as recording:
        capture(graph)
        with outer.capturing(), gpu_phase("outer"):
            graph.replay()
            graph.replay()
        assert recording.flush(0.1)  # nothing has been replayed that could be waited for
        outer.replay()
        program.settle(recording)
        outer.replay()
    run = recording.run
    (inner, other) = phases_of(run).graphs
    assert (inner.marks, inner.is_ambiguous, inner.replays) == (3, True, 0)
    assert not any(one.count for one in phases_of(run).phases if one.path != "outer")
    assert (other.marks, other.is_ambiguous) == (2, False)
    assert times_of(run, "outer") == [2 * (FORWARD_NS + BACKWARD_NS)] * 2
    assert not run.phases.get("outer/model/forward")


def test_a_capture_has_so_many_marks_at_most(program: Program, graph: FakeCudaGraph) -> None:
    other = FakeCudaGraph(graph.stream)
    with program.settled() as recording:
        for each in (graph, other):
            with each.capturing():
                for _ in range(200):
                    with gpu_phase("layer"):
                        graph.stream.launch(FORWARD_NS)
                    graph.stream.launch(FORWARD_NS)
            each.replay()
    run = recording.run
    assert times_of(run, "layer") == [FORWARD_NS] * 256
    assert [one.marks for one in phases_of(run).graphs] == [256, 256]
    assert dropped_of(run) == {"device_graph_nodes": 144}


def test_true_lifts_the_bound_of_a_capture(program: Program, graph: FakeCudaGraph) -> None:
    with program.settled(graph_phases=True) as recording:
        with graph.capturing():
            for _ in range(300):
                with gpu_phase("layer"):
                    graph.stream.launch(FORWARD_NS)
                graph.stream.launch(FORWARD_NS)
        graph.replay()
    assert times_of(recording.run, "layer") == [FORWARD_NS] * 300


def test_nothing_is_put_into_a_graph_where_it_is_turned_off(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled(graph_phases=False) as recording:
        capture(graph)
        replay(program, graph, 2)
    assert graph.graph is not None
    assert graph.graph.entries == 2
    assert recording.run.graph_phases is None
    assert program.cuda.host_bytes == 0
    assert recording.run.dropped["device_capturing"] == 3


class SplitCudaGraph(FakeCudaGraph):
    """As of torch 2.14, where torch.cuda.graph calls the parts of `capture_end`."""

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        super().capture_begin(pool, capture_error_mode)

    def capture_end_pre(self) -> None:
        self.graph = self.stream.end_capture()

    def capture_end(self) -> None:
        self.capture_end_pre()

    def replay(self) -> None:
        super().replay()

    def reset(self) -> None:
        super().reset()


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_capture_that_torch_ends_in_parts_has_its_end(
    program: Program, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SplitCudaGraph)
    monkeypatch.setattr(watch, "_hooks", None)  # those of the other class stay for later tests
    graph = SplitCudaGraph(program.cuda.devices[0].create_stream())
    with program.settled() as recording:
        with graph.stream.as_current():
            graph.capture_begin()
            with gpu_phase("forward"):
                graph.stream.launch(FORWARD_NS)
            (graph.capture_end_pre if in_parts else graph.capture_end)()
        replay(program, graph, 2)
        graph.reset()
    assert times_of(recording.run, "train/forward") == [FORWARD_NS] * 2
    assert sorted(set(phases_of(recording.run).runs["step"].tolist())) == [0, 1]


def test_a_driver_that_refuses_the_kernel_leaves_phases_in_graphs_unknown(
    program: Program, graph: FakeCudaGraph
) -> None:
    program.cuda.fail("cuLibraryLoadData", Result.UNSUPPORTED_PTX, count=None)
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 2)
    run = recording.run
    assert graph.graph is not None
    assert graph.graph.entries == 2
    assert program.cuda.captures_invalidated == 0
    assert phases_of(run).runs.size == 0
    (unknown,) = (line for line in document_of(run).unknown if "CUDA graphs" in line)
    assert unknown.startswith("Phases inside CUDA graphs: cuLibraryLoadData answered CUDA_ERROR_")
    assert (run.span_device_ns[run.spans["path"] == run.paths.index("train")] > 0).all()


def test_a_clock_of_long_steps_is_refused(program: Program, graph: FakeCudaGraph) -> None:
    program.cuda.devices[0].set_timer(0, 1_000_000)
    with program.recording() as recording:
        capture(graph)
        for _ in range(5):
            program.cuda.advance(95_000_000)
            recording.flush(0)
    assert phases_of(recording.run).failure.endswith("steps of more than 2000 ns")


def test_a_kernel_that_can_no_longer_be_launched_costs_further_graphs_and_later_places(
    program: Program, graph: FakeCudaGraph
) -> None:
    other = FakeCudaGraph(graph.stream)
    with program.settled() as recording:
        capture(graph)
        program.settle(recording)
        program.cuda.fail("cuLaunchKernel", Result.LAUNCH_FAILED, count=None)
        capture(other)
        program.cuda.advance(600_000_000_000)
        replay(program, graph, 1)
        other.replay()
    run = recording.run
    assert times_of(run, "train/model/forward") == [FORWARD_NS]
    assert set(phases_of(run).runs["device_begin_ns"].tolist()) == {-1}
    assert phases_of(run).failure.startswith("cuLaunchKernel answered CUDA_ERROR_LAUNCH_FAILED")
    assert program.cuda.count("cuLaunchKernel", Result.LAUNCH_FAILED) == 1
    assert run.dropped["device_capturing"] == 3


def test_replays_that_nobody_has_told_of_have_no_step(
    program: Program, graph: FakeCudaGraph
) -> None:
    """Those of a graph that was captured by other means than torch's."""
    with program.settled() as recording:
        capture(graph)
        with graph.stream.as_current():
            graph.stream.begin_capture()
            with gpu_phase("raw"):
                graph.stream.launch(FORWARD_NS)
            raw = graph.stream.end_capture()
        raw.launch(graph.stream)
    runs = phases_of(recording.run).runs
    assert runs["step"].tolist() == [UNKNOWN_STEP]
    assert times_of(recording.run, "raw") == [FORWARD_NS]


def test_what_the_device_has_not_done_at_the_end_is_counted(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.recording() as recording:
        capture(graph)
        replay(program, graph, 2)
        program.settle(recording)
        graph.stream.hang()
        replay(program, graph, 3)
        assert not recording.flush(0)
    assert times_of(recording.run, "train/model/forward") == [FORWARD_NS] * 2
    assert dropped_of(recording.run) == {"device_unfinished": 9}


def test_a_replay_that_fails_counts_as_none(program: Program, graph: FakeCudaGraph) -> None:
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 1)
        kept, graph.graph = graph.graph, None
        with pytest.raises(RuntimeError):
            graph.replay()
        graph.graph = kept
        with gpu_step():
            graph.replay()
    assert sorted(set(phases_of(recording.run).runs["step"].tolist())) == [0, 1]
    assert dropped_of(recording.run) == {}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_replay_that_is_interrupted_behind_its_launch_counts(
    program: Program, graph: FakeCudaGraph, at_once: bool
) -> None:
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 1)
        if not at_once:
            program.settle(recording)
        for _ in range(2):
            graph.interrupt_replay = True
            with pytest.raises(KeyboardInterrupt), gpu_step():
                graph.replay()
            if not at_once:
                program.settle(recording)
        replay(program, graph, 2)
    phases = phases_of(recording.run)
    assert [(one.replays, one.is_ambiguous) for one in phases.graphs] == [(5, False)]
    assert [(run, step) for run, step in phases.runs[["run", "step"]].tolist()[::3]] == [
        (run, run - 1) for run in range(1, 6)
    ]
    assert dropped_of(recording.run) == {}


def test_where_only_some_failed_replays_have_run_the_step_of_later_ones_is_unknown(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled() as recording:
        capture(graph)
        kept, graph.graph = graph.graph, None
        with pytest.raises(RuntimeError), gpu_step():
            graph.replay()
        graph.graph = kept
        graph.interrupt_replay = True
        with pytest.raises(KeyboardInterrupt), gpu_step():
            graph.replay()
        replay(program, graph, 1)
    phases = phases_of(recording.run)
    assert not phases.graphs[0].is_ambiguous
    assert phases.runs["run"].tolist()[::3] == [1, 2]
    assert set(phases.runs["step"].tolist()) == {UNKNOWN_STEP}


def test_the_hooks_stay_while_a_graph_with_marks_is_there(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.recording():
        capture(graph)
    assert watch._hooks is not None
    graph.reset()
    with program.recording():
        pass
    assert watch._hooks is None


def test_a_capture_in_a_step_that_is_not_timed_is_marked_all_the_same(
    program: Program, graph: FakeCudaGraph
) -> None:
    with program.settled(device_timing_budget=1e-9) as recording:
        for number in range(6):
            with gpu_step():
                with gpu_phase("work"):
                    program.work(1_000)
                if number == 4:
                    capture(graph)
        replay(program, graph, 2)
    assert times_of(recording.run, "train/model/forward") == [FORWARD_NS] * 2


def test_the_report_says_what_each_phase_took(program: Program, graph: FakeCudaGraph) -> None:
    with program.settled() as recording:
        capture(graph)
        replay(program, graph, 12)
    report = recording.run.report(verbose=True, color=False)
    assert "Inside CUDA graphs: ms of device time, in each replay" in report
    assert re.search(r"train/model/backward +12 +3.200 +3.2\d\d", report)
    assert "1 graph with 3 marks, replayed 12 times" in report


def test_a_timeline_has_a_row_for_phases_in_graphs(
    program: Program, graph: FakeCudaGraph, tmp_path: Path
) -> None:
    with program.recording() as recording:
        capture(graph)
        for _ in range(30):
            program.cuda.advance(95_000_000)
            recording.flush(0)
        replay(program, graph, 2)
        program.settle(recording)
    trace = tmp_path / "trace.json"
    recording.run.export(trace, format="perfetto")
    events = json.loads(trace.read_text())["traceEvents"]
    (row,) = {event["id2"]["local"] for event in events if event["name"] == "GPU 0 in graphs"}
    begins = [
        (event["name"], event["args"])
        for event in events
        if event.get("id2") == {"local": row} and event["ph"] == "b"
    ]
    assert begins == [
        (name, {"path": f"train/model{path}", "step": step})
        for step in range(2)
        for name, path in (("model", ""), ("forward", "/forward"), ("backward", "/backward"))
    ]


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas of the CUDA toolkit is missing")
@pytest.mark.parametrize("architecture", [75, 80, 86, 89, 90, 100, 103, 120])
def test_the_kernel_assembles(architecture: int, tmp_path: Path) -> None:
    header = Path(__file__).parents[3] / "csrc" / "cuda" / "graph_stamp_ptx.h"
    (text,) = re.findall(r'R"ptx\(\n(.*?)\)ptx"', header.read_text(), re.DOTALL)
    source = tmp_path / "stamp.ptx"
    source.write_text(text)
    output = tmp_path / "stamp.cubin"
    command = ["ptxas", f"-arch=sm_{architecture}", str(source), "-o", str(output)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if "is not defined for option" in done.stderr:
        pytest.skip(f"this ptxas does not know sm_{architecture}")
    assert done.returncode == 0, done.stderr
    assert output.stat().st_size > 0
