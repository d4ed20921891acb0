# SPDX-License-Identifier: Apache-2.0
"""Live sinks: what they are told, and that training never notices."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.statistics import Scope
from tests.helpers.clock import fake_clock
from tests.helpers.script import run_script
from tests.helpers.sinks import HANGS_AFTER_S, KeepingSink, all_steps, times_by_step
from tests.helpers.threads import on_thread

SOON_S = 0.001
NEVER_S = 3600.0

# More than the subscription keeps between two looks, in batches that no ring is too small for.
MANY = 30 * 4000


def last(update: pig.RunUpdate) -> bool:
    return update.final


# --- what a sink is told ---


@pytest.mark.parametrize("in_file", [False, True])
def test_steps_and_times_of_their_phases(tmp_path: Path, in_file: bool) -> None:
    sink = KeepingSink()
    with fake_clock() as tick, pig.record(tmp_path / "a.gpurun" if in_file else None) as recording:
        recording.add_sink(sink)
        for _ in gpu_steps(range(2), samples=8):
            for _ in range(2):
                with gpu_phase("forward"):
                    tick(3)
                    with gpu_phase("a/b"):
                        tick(4)
            tick(5)

    run = recording.run
    assert sink.times == {
        (step, path, Scope.STEP): times
        for step in range(2)
        for path, times in {
            "data": (1, 0),
            "forward": (2, 14),
            "forward/a%2Fb": (2, 8),
        }.items()
    }
    steps = all_steps(sink)
    assert steps.tobytes() == run.steps.array.tobytes()
    assert durations_ns_of(steps).tolist() == [19, 19]
    assert steps["samples"].tolist() == [8, 8]
    assert sum(map(last, sink.updates)) == 1
    assert (sink.opened, sink.closed) == (1, 1)


def test_last_update_has_the_totals_of_the_run() -> None:
    sink = KeepingSink()
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink)
        gpu_phase("no begin").end()
        for _ in gpu_steps(range(3)):
            with gpu_phase("forward"):
                tick(1)

    update = sink.wait_for(last)
    run = recording.run
    assert update.totals is not None
    assert update.totals.phases == run.phases
    assert update.totals.steps == run.step_totals
    assert update.dropped == run.dropped
    assert update.dropped["unmatched_ends"] == 1
    assert update.phases_recorded == run.phases_recorded == 3 + 3
    assert update.environment["run_id"] == run.environment["run_id"]
    assert update.began_realtime_ns == run.environment["anchor"]["realtime_ns"]


def test_passes_through_modules_are_no_phases() -> None:
    sink = KeepingSink()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pig.watch_modules(model, "all", every=1), pig.record() as recording:
        recording.add_sink(sink)
        for _ in range(3):
            with gpu_step():
                with gpu_phase("forward"):
                    loss = model(torch.ones(2, 4)).sum()
                with gpu_phase("backward"):
                    loss.backward()

    update = sink.wait_for(last)
    run = recording.run
    assert run.modules["*"].calls == 6
    assert update.totals is not None
    assert update.totals.phases == run.phases
    assert update.phases_recorded == run.phases_recorded == 6
    assert update.paths == run.paths == ("forward", "backward")
    assert sink.times == times_by_step(run)


def test_times_of_other_threads_stand_apart() -> None:
    sink = KeepingSink()

    def work() -> None:
        with gpu_phase("load"):
            tick(7)

    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink)
        with gpu_step(), gpu_phase("load"):
            on_thread(work)
            tick(1)

    assert sink.times == {
        (0, "load", Scope.STEP): (1, 8),
        (0, "load", Scope.OTHER_THREADS): (1, 7),
    }


_PHASES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)
_LOOPS = st.lists(st.lists(_PHASES, max_size=6), max_size=5)


@settings(max_examples=15)
@given(loops=_LOOPS)
def test_updates_together_are_the_run(loops: list[list[list[str]]]) -> None:
    """However the looks fall: each loop ends with a step that is dropped."""
    sink = KeepingSink()
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        for loop in loops:
            with gpu_phase("between"):
                tick(1)
            for names in gpu_steps(loop):
                for name in names:
                    with gpu_phase(name), gpu_phase("inner"):
                        tick(1)
            recording.snapshot()

    run = recording.run
    assert sink.times == times_by_step(run)
    assert all_steps(sink).tobytes() == run.steps.array.tobytes()


def test_update_while_the_recording_goes_on() -> None:
    sink = KeepingSink()
    with fake_clock() as tick, pig.record() as recording:
        recording.add_sink(sink, interval_s=SOON_S)
        with gpu_step(), gpu_phase("forward"):
            tick(2)
        update = sink.wait_for(lambda update: len(update.steps) > 0)
        assert not update.final
        assert update.phase_times["host_ns"].tolist() == [2]

        tick(2_000_000_000)  # statistics are made once a second
        update = sink.wait_for(lambda update: update.totals is not None)
        assert not update.final
        assert update.totals is not None
        assert update.totals.phases["forward"].count == 1


# --- what it was not there for ---


def test_sink_that_is_added_late() -> None:
    """Of a step that had begun it can't know all phases."""
    sink = KeepingSink()
    with pig.record() as recording:
        with gpu_step(), gpu_phase("early"):
            pass
        with gpu_step():
            with gpu_phase("early"):
                pass
            recording.snapshot()
            recording.add_sink(sink, interval_s=SOON_S)
            sink.wait_for(lambda update: update.phases_recorded == 2)
            with gpu_phase("late"):
                pass
        for _ in range(3):
            with gpu_step(), gpu_phase("late"):
                pass

    assert sink.steps == [1, 2, 3, 4]
    assert {step for step, _, _ in sink.times} == {3, 4}
    assert sink.wait_for(last).paths == ("early", "late")
    assert sink.wait_for(last).totals is not None


def test_more_than_the_subscription_keeps() -> None:
    """The step that closed meanwhile is left out; later ones are whole."""
    sink, waker = KeepingSink(), KeepingSink()
    phase = gpu_phase("a")
    with pig.record() as recording:
        recording.add_sink(sink, interval_s=NEVER_S)
        sink.wait_for(lambda _: True)
        with gpu_step():
            for _ in range(MANY // 4000):
                for _ in range(4000):
                    with phase:
                        pass
                recording.snapshot()
        recording.snapshot()
        recording.add_sink(waker, interval_s=NEVER_S)
        waker.wait_for(lambda update: update.phases_recorded == MANY)
        for _ in range(3):
            with gpu_step(), phase:
                pass

    assert sink.steps == [1, 2, 3]
    assert {step for step, _, _ in sink.times} == {1, 2, 3}
    totals = sink.wait_for(last).totals
    assert totals is not None
    assert totals.phases["a"].count == MANY + 3


# --- sinks that fail ---


class FailingSink(KeepingSink):
    def write(self, update: pig.RunUpdate) -> None:
        super().write(update)
        raise ValueError("no room")


class NotClosingSink(KeepingSink):
    def close(self) -> None:
        super().close()
        raise ValueError("no way")


def test_sink_that_raises_is_switched_off_and_nothing_else_is() -> None:
    failing, other = FailingSink(), KeepingSink()
    with pytest.warns(RuntimeWarning) as caught, pig.record() as recording:
        recording.add_sink(failing, interval_s=SOON_S)
        recording.add_sink(other)
        for _ in range(3):
            count = len(other.updates)
            with gpu_step(), gpu_phase("a"):
                pass
            other.wait_for(lambda _, count=count: len(other.updates) > count)  # type: ignore[misc]

    assert [str(warning.message) for warning in caught] == [
        "FailingSink failed and was switched off: ValueError('no room'). "
        "The recording and other sinks continue"
    ]
    assert (len(failing.updates), failing.closed) == (1, 1)
    assert other.steps == [0, 1, 2]
    assert recording.run.phases["a"].count == 3


def test_sink_that_cannot_be_closed() -> None:
    sink = NotClosingSink()
    with pytest.warns(RuntimeWarning, match="NotClosingSink could not be closed: ValueError"):
        recording = pig.start()
        recording.add_sink(sink)
        run = recording.stop()

    assert run.complete
    assert sink.closed == 1


def test_failure_where_warnings_are_errors() -> None:
    script = """
import sys
import pyinstrument_gpu as pig

class Failing(pig.Sink):
    def write(self, update):
        raise SystemExit(3)

with pig.record() as recording:
    recording.add_sink(Failing())
    with pig.gpu_step():
        pass
assert len(recording.run.steps) == 1
"""
    done = run_script("import warnings; warnings.simplefilter('error')" + script)

    assert done.stderr == (
        "pyinstrument_gpu: Failing failed and was switched off: SystemExit(3). "
        "The recording and other sinks continue\n"
    )


class HangingSink(KeepingSink):
    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def write(self, update: pig.RunUpdate) -> None:
        super().write(update)
        assert self.go_on.wait(HANGS_AFTER_S)


def test_sink_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no part in a later recording."""
    monkeypatch.setattr("pyinstrument_gpu.recording.recording._SINKS_DEADLINE_S", 0.01)
    hanging, other = HangingSink(), KeepingSink()
    recording = pig.start()
    recording.add_sink(hanging)
    hanging.wait_for(lambda _: True)
    with pytest.warns(RuntimeWarning, match=r"did not finish within 0\.01 s"):
        assert recording.stop().complete

    monkeypatch.undo()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "pig-sinks"]
    with pig.record() as recording:
        recording.add_sink(other)
        hanging.go_on.set()
        thread.join(HANGS_AFTER_S)
        with gpu_step():
            pass
    assert other.steps == [0]
    assert hanging.steps == []


class ClosedSink(KeepingSink):
    def open(self) -> None:
        raise OSError("closed")


def test_sink_that_cannot_be_opened() -> None:
    sink = ClosedSink()
    with pig.record() as recording, pytest.raises(OSError, match="closed"):
        recording.add_sink(sink)
    assert recording.run.complete
    assert (sink.updates, sink.closed) == ([], 0)


# --- from the beginning ---


def test_sinks_of_record() -> None:
    sinks = [KeepingSink(), KeepingSink()]
    with pig.record(sinks=sinks) as recording:
        for _ in range(3):
            with gpu_step(), gpu_phase("forward"):
                pass

    for sink in sinks:
        assert sink.steps == [0, 1, 2]
        assert sink.times == times_by_step(recording.run)
        assert (sink.opened, sink.closed) == (1, 1)


def test_one_of_them_that_cannot_be_opened(tmp_path: Path) -> None:
    """Nothing has begun, and no file is in the way of the next try."""
    sinks = [KeepingSink(), ClosedSink(), KeepingSink()]
    with pytest.raises(OSError, match="closed"), pig.record(tmp_path / "a.gpurun", sinks=sinks):
        pytest.fail("the block was entered")

    assert [(sink.opened, sink.closed) for sink in sinks] == [(1, 1), (0, 0), (0, 0)]
    assert list(tmp_path.iterdir()) == []
    with pig.record(tmp_path / "a.gpurun"):
        pass


def test_recording_that_cannot_begin_closes_them(tmp_path: Path) -> None:
    taken = tmp_path / "a.gpurun"
    taken.touch()
    sinks = [NotClosingSink(), KeepingSink()]
    with pytest.raises(pig.RunPathError, match="already exists"):
        pig.start(taken, sinks=sinks)
    assert [(sink.opened, sink.closed) for sink in sinks] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (KeepingSink(), "sinks must be a list of sinks"),
        ([KeepingSink], "a sink is .*got the class KeepingSink: pass an object of it"),
        (iter([]), "sinks must be a list of sinks"),
        ("tensorboard", "sinks must be a list of sinks"),
        ([3], "a sink is .*got an object of type int"),
    ],
)
def test_what_are_no_sinks(sinks: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pig.record(sinks=sinks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sink", "target", "message"),
    [
        (pig.TensorBoardSink, "logs", r"add_scalar.*got 'logs'"),
        (pig.WandbSink, "my-project", r"what wandb\.init\(\) returned, got 'my-project'"),
    ],
)
def test_what_a_sink_can_not_write_to(sink: Any, target: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sink(target)


def test_package_that_is_not_installed() -> None:
    script = """
import sys
import pyinstrument_gpu as pig

for package, make in (
    ("mlflow", pig.MLflowSink),
    ("prometheus_client", lambda: pig.PrometheusSink(0)),
):
    sys.modules[package] = None
    try:
        pig.start(sinks=[make()])
    except pig.MissingDependencyError as error:
        print(error)
"""
    packages = re.findall(r"pip install (\w+)", run_script(script).stdout)
    assert packages == ["mlflow", "prometheus_client"]


# --- the life of a recording ---


def test_wrong_use() -> None:
    recording = pig.record()
    with pytest.raises(pig.RecordingError, match="never started"):
        recording.add_sink(KeepingSink())
    with recording:
        with pytest.raises(TypeError, match=r"a sink is .*which has no open and no write and no"):
            recording.add_sink(object())  # type: ignore[arg-type]
        for interval_s in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="interval_s must be"):
                recording.add_sink(KeepingSink(), interval_s=interval_s)


def test_sink_needs_no_base_class() -> None:
    class Sink:
        def open(self) -> None: ...
        def close(self) -> None: ...
        def write(self, update: pig.RunUpdate) -> None:
            updates.append(update)

    updates: list[pig.RunUpdate] = []
    with pig.record() as recording:
        recording.add_sink(Sink())  # type: ignore[arg-type]
    assert updates[-1].final
    with pytest.raises(pig.RecordingError, match="has stopped"):
        recording.add_sink(KeepingSink())


_PRINTING = """
import os
import pyinstrument_gpu as pig

class Printing(pig.Sink):
    steps = 0
    def open(self):
        print("open")
    def write(self, update):
        self.steps += len(update.steps)
    def close(self):
        print("close after", self.steps, "steps", flush=True)

recording = pig.start()
recording.add_sink(Printing())
"""


def test_switched_off_by_the_environment() -> None:
    script = _PRINTING + "print(recording.stop().notes)"
    done = run_script(script, environment={"PYINSTRUMENT_GPU": "0"})

    assert "open" not in done.stdout
    assert "PYINSTRUMENT_GPU in the environment" in done.stdout


def test_end_of_the_program_is_the_end_of_its_recording() -> None:
    done = run_script(_PRINTING + "with pig.gpu_step(): pass")

    assert done.stdout == "open\nclose after 1 steps\n"


def test_forked_child_leaves_the_sinks_to_its_parent() -> None:
    script = """
with pig.gpu_step():
    pass
child = os.fork()
if child == 0:
    try:
        recording.add_sink(Printing())
    except pig.RecordingError as error:
        print("a fork" in str(error), flush=True)
    with pig.record() as own:
        sink = Printing()
        own.add_sink(sink)
    os._exit(0)
os.waitpid(child, 0)
with pig.gpu_step():
    pass
recording.stop()
"""
    ignored = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
    done = run_script(ignored + _PRINTING + script)

    # The buffer with "open" is the child's too.
    assert done.stdout.replace("open\n", "") == ("True\nclose after 0 steps\nclose after 2 steps\n")


def test_no_sink_no_thread() -> None:
    with pig.record():
        assert "pig-sinks" not in {thread.name for thread in threading.enumerate()}
