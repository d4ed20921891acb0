# SPDX-License-Identifier: Apache-2.0
"""What is shown of a run: the whole run beside the newest steps."""

from pathlib import Path

import numpy as np
import pytest

from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE, Memory
from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE, ModulePass
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core import live as live_module
from pyinstrument_gpu.core.file import follower
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.live import SERIES
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.watch.live_run import (
    LiveRecorder,
    live_run,
    spread,
)
from pyinstrument_gpu.watch.watch import Unreadable
from tests.helpers.watched import MS, S, clocks_at, live, replace_file, running, watched


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.gpurun"


def test_times_per_step_leave_out_the_open_step(path: Path) -> None:
    ended = running(2)
    begin_ns = int(ended.steps.array["begin_ns"][-1])
    forward = (1, 1, 2, 0, 0, -1, -1, begin_ns, begin_ns + 50 * MS, -1, -1, -1, 1)
    spans = np.append(ended.spans, np.array([forward], ended.spans.dtype))
    phases = {phase.path: phase for phase in live(running(2, spans=spans), path).phases}
    assert phases["forward"].calls == 3
    assert phases["forward"].per_step_ns == (30 + 60) / 2 * MS


def test_the_window_has_the_newest_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WINDOW_NS", 310 * MS)
    run = live(running(20), path)
    assert (run.steps.window_steps, run.steps.window_ns) == (4, 400 * MS)
    phases = {phase.path: phase for phase in run.phases}
    forward = phases["forward"]
    assert (forward.calls, forward.window_calls) == (20, 4)
    assert forward.window_per_step_ns == (3 * 30 + 60) / 4 * MS
    assert forward.per_step_ns == (19 * 30 + 60) / 20 * MS
    (wait,) = run.aspects["waits"]
    assert (wait["count"], wait["window_count"]) == (20, 4)

    monkeypatch.setattr(live_module, "WINDOW_NS", 1)  # at least three
    assert live(running(20), path).steps.window_steps == 3


def test_steps_whose_spans_are_not_all_kept_are_not_in_the_window(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "KEPT_BLOCKS", dict.fromkeys(follower.KEPT_BLOCKS, 3))
    run = live(running(1000), path)
    # Of 3001 spans the last three blocks have 408 and 408 and 145. The first may lack some of a
    # step, so the window has the steps of the others.
    assert run.steps.window_steps == 553 // 3
    backward = next(phase for phase in run.phases if phase.path == "backward")
    assert (backward.calls, backward.window_calls) == (1000, 553 // 3)
    assert backward.window_per_step_ns == 50 * MS
    assert len(backward.series_ns) == SERIES
    assert set(backward.series_ns) == {50 * MS}


def test_memory_and_modules(path: Path) -> None:
    points = np.array([(1, 5000, 6000), (3, 7000, -1)], MEMORY_POINT_DTYPE)
    passes = [
        (60 * MS, 70 * MS, 0, ModulePass.FORWARD, 0, 0, 1, 0, -1, -1, -1),
        (70 * MS, 90 * MS, 1, ModulePass.FORWARD, 0, 0, 1, 0, -1, -1, -1),
        (110 * MS, 130 * MS, 0, ModulePass.BACKWARD, 0, 0, 2, 0, -1, -1, -1),
        (600 * MS, 630 * MS, 1, ModulePass.FORWARD, -1, 0, -1, 0, -1, -1, -1),  # outside of steps
    ]
    run = running(
        memory=Memory(device=0, steps=2, peak_bytes=9000, points=points, out_of_memory_count=1),
        module_names=["h.0", "h.1"],
        module_spans=np.array(passes, MODULE_SPAN_DTYPE),
    )
    followed = live_run("a", run, State(spans=16, steps=5), live(running(), path).heartbeat)
    memory = followed.aspects["memory"]
    assert tuple(memory.values()) == (0, 3, 7000, None, 9000, 1, (5000, 7000))
    (module,) = followed.aspects["modules"]
    assert tuple(module.values()) == ("h.*", 2, 3, 20 * MS, 20 * MS, 30 * MS, 20 * MS)


def test_steps_that_were_profiled_are_in_no_times(path: Path) -> None:
    run = running(operations=Operations(profiled=((3, 4),)))
    seen = live_run("a", run, State(), live(running(), path).heartbeat)
    assert (seen.steps.count, seen.steps.window_steps, len(seen.steps.newest)) == (5, 3, 5)
    forward = next(phase for phase in seen.phases if phase.path == "forward")
    assert (forward.calls, forward.per_step_ns) == (3, 30 * MS)
    assert (forward.window_calls, forward.window_per_step_ns) == (3, 30 * MS)
    assert seen.profiled == ((3, 4),)


def test_the_recorder(path: Path) -> None:
    run = live(running(dropped={"ring_full": 3, "depth": 0}), path)
    assert run.recorder == LiveRecorder(0.01, {"ring_full": 3}, 0, None)
    assert run.notes == ()
    assert (run.host, run.pid, run.rank, run.command) == ("box", 4242, None, ("python", "train.py"))


def test_a_run_with_statistics_alone(path: Path) -> None:
    statistic = Statistic.of(np.array([7 * MS] * 9))
    run = running(
        0,
        spans=None,
        span_self_ns=None,
        open_step=None,
        open_phases=(),
        steps=None,
        syncs=None,
        statistics={(1, Scope.OTHER_THREADS): PhaseStatistics(host=statistic)},
    )
    seen = live(run, path)
    assert (seen.steps.count, seen.steps.window_per_s, seen.steps.series_ns) == (0, None, ())
    assert [phase.calls for phase in seen.phases] == [0, 9, 0, 0]
    assert seen.phases[1].per_step_ns is None
    assert seen.aspects["waits"] is None


def test_a_file_that_is_no_run_any_more(path: Path) -> None:
    watching = watched(path)
    assert watching.look(clocks_at(S)) == Unreadable(str(path), "No such file or directory")
    path.write_text("a text")
    seen = watching.look(clocks_at(S))
    assert isinstance(seen, Unreadable)
    assert seen.reason.startswith("not a run file")
    replace_file(running(), path)
    assert not isinstance(watching.look(clocks_at(S)), Unreadable)
    watching.close()


def test_the_spread_of_ranks() -> None:
    assert spread([2.0, 3.0, None, 2.5]) == 0.5
    assert spread([2.0, None]) is None
    assert spread([0.0, 1.0]) is None
    assert spread([]) is None
