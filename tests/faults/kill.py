# SPDX-License-Identifier: Apache-2.0
"""SIGKILL: what the file of the process then says.

How much is missing is judged by a diary that the training writes by other means
(tests/helpers/digits_training.py).
"""

import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pyinstrument_gpu as pig
from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.run import Run
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.child import start_child
from tests.helpers.digits_training import (
    BLOCKED_STEP,
    read_diary,
    train_until_blocked,
    train_with_diary,
)
from tests.helpers.spans import dropped_of

FAULTS = FaultGroup("kill")

PHASES = {"data", "forward", "backward", "optimizer", "metrics"}

# Two clocks read one after the other by different code.
CLOCK_SLACK_NS = 50_000

# Only a child that hangs takes as long.
HANGS_AFTER_S = 600


@FAULTS.fault(
    done="A training is killed with `SIGKILL` at a random moment.",
    holds="Its file loads and says that the recording was not stopped. Each step that ended before "
    "the last sign of life in the file is there, with all its phases. The statistics are those of "
    "the spans and steps that are there.",
    times=2,
    slow_times=18,
)
def training(trial: Trial) -> None:
    kill_in_step = trial.random.randrange(100, 1000)  # of 2700
    diary = trial.directory / "diary"
    child = start_child(train_with_diary, trial.path, diary)
    must_be_there = 0  # steps that the file has had

    def in_file() -> bool:
        nonlocal must_be_there
        must_be_there = len(pig.Run.load(trial.path).steps.closed)
        return must_be_there >= kill_in_step

    wait_until(lambda: len(read_diary(diary)) >= kill_in_step, child)
    wait_until(in_file, child)  # while the training goes on
    time.sleep(trial.random.uniform(0, 0.02))  # anywhere between two ticks of the harvester
    kill(child)

    run = pig.Run.load(trial.path)
    assert not run.complete
    assert any("not stopped" in note for note in run.notes)
    assert dropped_of(run) == {}

    # The diary, on the run's own axis.
    diary_ns = read_diary(diary) - run.anchor["monotonic_raw_ns"]
    diary_ns += run.anchor["run_ns"]
    # What ended before the last sign of life; the last of those was perhaps not closed yet.
    must_be_there = max(
        must_be_there, int((diary_ns <= run.duration_ns - CLOCK_SLACK_NS).sum()) - 1
    )
    closed = run.steps.closed
    assert must_be_there <= len(closed) <= len(diary_ns)
    assert closed["index"].tolist() == list(range(len(closed)))
    assert closed["complete"].all()
    written_ns = diary_ns[: len(closed)]
    assert (closed["begin_ns"] - CLOCK_SLACK_NS <= written_ns).all()
    assert (written_ns <= closed["end_ns"] + CLOCK_SLACK_NS).all()

    # Each of those steps with all its phases, and the spans of one step in their order.
    of_step = run.spans[run.spans["step"] >= 0]
    phases = Counter(zip(of_step["step"].tolist(), of_step["path"].tolist(), strict=True))
    paths = [run.paths.index(phase) for phase in PHASES]
    missing = [(s, p) for s in range(must_be_there) for p in paths if phases[s, p] != 1]
    assert missing == []

    # Statistics are those of the spans and steps that are there.
    expected = Run(spans=run.spans, span_self_ns=run.span_self_ns, steps=run.steps)
    assert run.statistics == expected.statistics
    assert run.step_totals == expected.step_totals
    assert run.phases_recorded == len(run.spans)

    # What was open at the last tick is named, also in the report. The training went on while the
    # harvester looked: the steps it saw may be later than the phases, never earlier.
    report = run.report(width=200)
    for phase in run.open_phases:
        assert phase.path in report
        if phase.path == "validation":
            assert phase.step == -1
        else:
            assert phase.path in PHASES
            assert must_be_there <= phase.step <= len(closed)
    if run.open_step is not None:
        assert run.open_step.index == len(closed)


@FAULTS.fault(
    done="A training that hangs inside nested phases of a step is killed.",
    holds="The run names the step and the phases that were open, and so does its report.",
)
def open_phases(trial: Trial) -> None:
    path = trial.path
    child = start_child(train_until_blocked, path)

    def blocked() -> bool:
        try:
            return len(pig.Run.load(path).open_phases) == 2
        except (FileNotFoundError, RunFileError):
            return False

    wait_until(blocked, child)
    kill(child)

    run = pig.Run.load(path)
    assert [(phase.path, phase.step, phase.depth) for phase in run.open_phases] == [
        ("forward", BLOCKED_STEP, 0),
        ("forward/convolution", BLOCKED_STEP, 1),
    ]
    assert run.open_step is not None
    assert run.open_step.index == BLOCKED_STEP
    assert len(run.steps.closed) == BLOCKED_STEP
    assert run.phases["data"].count == BLOCKED_STEP + 1
    assert run.phases["forward"].count == BLOCKED_STEP
    assert "forward/convolution" in run.report(width=200)


def wait_until(condition: Callable[[], bool], child: BaseProcess) -> None:
    deadline = time.monotonic() + HANGS_AFTER_S
    while not condition():
        assert child.is_alive(), f"the training ended by itself: exit code {child.exitcode}"
        assert time.monotonic() < deadline, "the training hangs"
        time.sleep(0.002)


def kill(child: BaseProcess) -> None:
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
