# SPDX-License-Identifier: Apache-2.0
"""Signals that a program survives, or that end it by way of the interpreter."""

import multiprocessing
import os
import signal
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.child import start_child
from tests.helpers.interrupts import Interrupter
from tests.helpers.script import run_script
from tests.helpers.spans import dropped_of

FAULTS = FaultGroup("signals")

HANDLED = 300


@FAULTS.fault(
    done="A timer sends a signal every 200 microseconds, and its handler records a phase, wherever "
    "the program is.",
    holds="The statistics have each span of the loop and of the handler.",
    times=1,
    thorough_times=2,
    slow_times=47,
)
def storm(trial: Trial) -> None:
    handled = loops = 0

    def handle(*_: object) -> None:
        nonlocal handled
        with gpu_phase("handler"):
            handled += 1

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pig.record(trial.path) as recording:
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
            while handled < HANDLED:
                with gpu_step(), gpu_phase("loop"):
                    loops += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    run = recording.run
    counted: Counter[str] = Counter()
    for path, phase in run.phases.items():
        counted[path.rpartition("/")[2]] += phase.count
    assert counted == {"handler": handled, "loop": loops}
    assert run.step_totals.count == run.step_totals.complete == loops
    assert dropped_of(run).keys() <= {"ring_full"}


def stop_oneself(run: Path, told: Connection) -> None:
    """Stops in the middle of a step, and goes on when it is told to; for a child process."""
    with pig.record(run) as recording:
        for number in range(100):
            with gpu_step(), gpu_phase("a"):
                if number == 50:
                    recording.snapshot()
                    told.send(os.getpid())
                    os.kill(os.getpid(), signal.SIGSTOP)


@FAULTS.fault(
    done="A process is stopped in the middle of a step with `SIGSTOP`, and continued.",
    holds="Its file can be read meanwhile and names what is open. Afterwards the run is complete.",
    times=1,
    thorough_times=2,
    slow_times=17,
)
def stopped_and_continued(trial: Trial) -> None:
    reader, writer = multiprocessing.Pipe()
    child = start_child(stop_oneself, trial.path, writer)
    pid = reader.recv()
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()
    run = pig.Run.load(trial.path)
    assert not run.complete
    assert [phase.path for phase in run.open_phases] == ["a"]
    assert run.phases["a"].count == 50
    assert run.open_step is not None
    assert run.open_step.index == 50

    os.kill(pid, signal.SIGCONT)
    child.join()
    assert child.exitcode == 0
    run = pig.Run.load(trial.path)
    assert run.complete
    assert run.phases["a"].count == run.step_totals.complete == 100
    assert dropped_of(run) == {}


@FAULTS.fault(
    done="Ctrl-C ends a program in the middle of a step, inside `with pig.record(...)` or not.",
    holds="The program ends as it would have. Its run is complete, and so are all steps but that "
    "one.",
    times=2,
)
def ctrl_c(trial: Trial) -> None:
    script = """
import signal, sys
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

def train():
    for number in gpu_steps(range(100)):
        with gpu_phase("a"):
            if number == 7:
                signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[2] == "with":
    with pig.record(sys.argv[1]):
        train()
else:
    pig.start(sys.argv[1])
    train()
"""
    block = ("with", "without")[trial.number]
    done = run_script(script, trial.path, block, exit_code=-signal.SIGINT)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "pyinstrument_gpu" not in done.stderr.replace("import pyinstrument_gpu", "")
    run = pig.Run.load(trial.path)
    assert run.complete
    assert run.phases["a"].count == run.phases["data"].count == 8
    assert [step.complete for step in run.steps] == [True] * 7 + [False]
    assert run.open_phases == ()
    assert dropped_of(run) == {}


@gpu_phase("decorated")
def decorated() -> None:
    pass


def train() -> None:
    steps = iter(gpu_steps(range(4), samples=lambda item: 1))
    for _ in steps:
        decorated()


@FAULTS.fault(
    done="Ctrl-C comes at any instruction of the package or of the loop, and the traceback, which "
    "has the loop's variables, is kept. The program then trains again, in the same recording.",
    holds="At most the step that it hits is not complete. All others are there, no phase is left "
    "open, and none lies within one that was.",
    times=10,
    thorough_times=10,
    slow_times=480,
)
def ctrl_c_anywhere(trial: Trial) -> None:
    kept: list[BaseException] = []
    interrupter = Interrupter(train)

    def interrupted() -> None:
        try:
            train()
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    train()  # what is done once only is done
    with pig.record() as recording:
        for _ in range(2):  # Python 3.12 reports a function's instructions from the second call on
            assert not interrupter.call(train)
        at = trial.random.randrange(len(interrupter.seen))
        # The recorder's own callbacks run in between: the instruction may not be reached.
        was_hit = interrupter.call(interrupted, at)
        train()
    run = recording.run
    complete = [step.complete for step in run.steps]
    assert complete[:4] == complete[-4:] == [True] * 4
    assert complete.count(False) <= was_hit
    assert set(run.paths) <= {"data", "decorated"}
    assert run.open_phases == ()
    assert dropped_of(run) == {}
