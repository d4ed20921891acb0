# SPDX-License-Identifier: Apache-2.0
"""SIGKILL: what the file of the process then says.

How much is missing is judged by a diary that the training writes by other means
(tests/helpers/digits_training.py).
"""

import contextlib
import multiprocessing
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileDamagedError, RunFileError
from tests.faults.damaged_file import (
    bits_flipped,
    range_zeroed,
    recordings,
    slot_of_another_slot,
    slots_swapped,
    truncated,
)
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.child import start_child
from tests.helpers.killed_programs import (
    BLOCKED_STEP,
    SPANS_BEFORE_STOP,
    STEPS_BEFORE_END,
    THREADS,
    count_on_threads,
    end_after_a_snapshot,
    loop_until_blocked,
    loop_with_diary,
    new_counters,
    read_counters,
    read_diary,
    start_when_told,
    stop_when_told,
)
from tests.helpers.spans import dropped_of

FAULTS = FaultGroup("kill")

PHASES = {"data", "forward", "backward", "optimizer", "metrics"}

# What the recorder's clock and the kernel's may differ by: a counter is calibrated by readings
# between which the system may run something else.
CLOCK_SLACK_NS = 1_000_000

# Only a child that hangs takes as long.
HANGS_AFTER_S = 600

# Those that need no older version of the file.
DAMAGES = (truncated, bits_flipped, range_zeroed, slots_swapped, slot_of_another_slot)

LACKS_THE_LAST_MOMENTS = (
    "Its file loads and says that the recording was not stopped. Each step that ended before the "
    "last heartbeat in the file is there, with all its phases. The statistics are those of the "
    "spans and steps that are there."
)


@FAULTS.fault(
    done="The training of the demo is killed with `SIGKILL` at a random moment.",
    holds=LACKS_THE_LAST_MOMENTS,
    times=0,
    slow_times=5,
)
def training(trial: Trial) -> None:
    from tests.helpers.digits_training import train_with_diary  # which imports torch

    check_lacks_the_last_moments(trial, train_with_diary, trial.random.randrange(100, 1000))


@FAULTS.fault(
    done="A loop of short steps is killed at a random moment.",
    holds=LACKS_THE_LAST_MOMENTS,
    times=3,
    thorough_times=5,
    slow_times=285,
)
def loop(trial: Trial) -> None:
    check_lacks_the_last_moments(trial, loop_with_diary, trial.random.randrange(10, 300))


def check_lacks_the_last_moments(
    trial: Trial, program: Callable[[Path, Path], None], kill_in_step: int
) -> None:
    diary = trial.directory / "diary"
    child = start_child(program, trial.path, diary)
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
    closed = run.steps.closed
    # The last of them may have been written down before the step ended.
    ended = int((diary_ns <= last_heartbeat_ns(run) - CLOCK_SLACK_NS).sum()) - 1
    must_be_there = max(must_be_there, ended)
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
    # Steps are collected after spans, so one that ended after the last heartbeat may lack some.
    before = int((closed["end_ns"] <= last_heartbeat_ns(run)).sum())
    missing = [(s, p) for s in range(max(ended, before)) for p in paths if phases[s, p] != 1]
    assert missing == []

    # Statistics are those of the spans and steps that are there.
    expected = Run(spans=run.spans, span_self_ns=run.span_self_ns, steps=run.steps)
    assert run.statistics == expected.statistics
    assert run.step_totals == expected.step_totals
    assert run.phases_recorded == len(run.spans)

    # What was open at the last tick is named, also in the report. The training went on while the
    # harvester looked: the steps it saw may be later than the phases, never earlier.
    report = run.report(verbose=True, width=200)
    for phase in run.open_phases:
        assert phase.path in report
        if phase.path == "validation":
            assert phase.step == -1
        else:
            assert phase.path in PHASES
            assert must_be_there <= phase.step <= len(closed)
    if run.open_step is not None:
        assert run.open_step.index == len(closed)


def last_heartbeat_ns(run: Run) -> int:
    """The millisecond in which it was."""
    (text,) = re.findall(r"last heartbeat was at ([\d.]+) s", " ".join(run.notes))
    return round(float(text) * 1e9) - 500_000


@FAULTS.fault(
    done="A process is killed while four of its threads record.",
    holds="Of each thread the file has the first spans, without a gap, and no fewer than before "
    "the kill.",
    times=2,
    thorough_times=8,
    slow_times=90,
)
def threads(trial: Trial) -> None:
    counters = trial.directory / "counters"
    new_counters(counters)
    child = start_child(count_on_threads, trial.path, counters)
    wait_until(lambda: min(read_counters(counters)) >= trial.random.randrange(1, 200), child)
    before = counts(load_when_there(trial.path, child))
    kill(child)

    run = pig.Run.load(trial.path)
    assert not run.complete
    after = counts(run)
    for number, counted in enumerate(read_counters(counters)):
        name = f"thread {number}"
        # The last span may have ended just before it was counted.
        assert before.get(name, 0) <= after.get(name, 0) <= counted + 1
    assert len(run.spans) == run.phases_recorded == sum(after.values())
    assert dropped_of(run) == {}


@FAULTS.fault(
    done="A process is killed while four of its threads record as fast as they can, so that not "
    "all spans find room.",
    holds="The file loads, and has no more spans than were recorded. Those that are known to be "
    "recorded and are not in the statistics are counted in `Run.notes`.",
    times=1,
    thorough_times=1,
    slow_times=27,
)
def overflow(trial: Trial) -> None:
    counters = trial.directory / "counters"
    new_counters(counters)
    child = start_child(count_on_threads, trial.path, counters, None)
    spans = trial.random.randrange(10_000, 60_000)
    wait_until(lambda: min(read_counters(counters)) >= spans, child)
    kill(child)

    run = pig.Run.load(trial.path)
    assert not run.complete
    after = counts(run)
    counted = read_counters(counters)
    for number in range(THREADS):
        assert after.get(f"thread {number}", 0) <= counted[number] + 1
    assert run.phases_recorded <= sum(counted) + THREADS
    missing = run.phases_recorded - sum(after.values())
    assert (missing > 0) == any(f" {missing:,} of the last spans" in note for note in run.notes)


@FAULTS.fault(
    done="A process is killed within 20 milliseconds of the beginning of a recording.",
    holds="There is no file, or one that is refused, or one that loads and has what was recorded. "
    "The next recording can take its place.",
    times=3,
    thorough_times=12,
    slow_times=285,
)
def beginning(trial: Trial) -> None:
    reader, writer = multiprocessing.Pipe()
    child = start_child(start_when_told, trial.path, writer)
    reader.recv_bytes()
    time.sleep(trial.random.uniform(0, 0.02))
    kill(child)

    with contextlib.suppress(FileNotFoundError, RunFileDamagedError):
        run = pig.Run.load(trial.path)
        assert not run.complete
        assert counts(run).keys() <= {"a"}
        assert len(run.spans) == run.phases_recorded
    with pig.record(trial.path, overwrite=True), gpu_phase("next"):
        pass
    assert counts(pig.Run.load(trial.path)) == {"next": 1}


@FAULTS.fault(
    done="A process is killed while its recording stops.",
    holds="The file loads. If it says that the run is complete, everything is there; otherwise it "
    "says that the recording was not stopped, and has the first spans.",
    times=3,
    thorough_times=12,
    slow_times=285,
)
def stop(trial: Trial) -> None:
    reader, writer = multiprocessing.Pipe()
    child = start_child(stop_when_told, trial.path, writer)
    reader.recv_bytes()
    reader.poll(trial.random.uniform(0, 0.005))  # until it has stopped, at most
    kill(child)

    run = pig.Run.load(trial.path)
    recorded = counts(run).get("a", 0)
    if run.complete:
        assert recorded == len(run.spans) == SPANS_BEFORE_STOP
        assert run.notes == ()
    else:
        assert not reader.poll()
        assert any("not stopped" in note for note in run.notes)
        assert recorded == len(run.spans) <= SPANS_BEFORE_STOP
    assert dropped_of(run) == {}


@FAULTS.fault(
    done="A process is killed, and then its file is damaged in 100 ways besides.",
    holds="The file is refused with a `RunFileError`, or has the first of the spans that it had, "
    "as they were.",
    times=1,
    thorough_times=2,
    slow_times=97,
)
def damage(trial: Trial) -> None:
    counters = trial.directory / "counters"
    new_counters(counters)
    child = start_child(count_on_threads, trial.path, counters)
    wait_until(lambda: min(read_counters(counters)) >= 500, child)
    load_when_there(trial.path, child)
    kill(child)

    whole = trial.path.read_bytes()
    spans = pig.Run.from_bytes(whole).spans
    read = 0
    for _ in range(100):
        data = bytearray(whole)
        trial.random.choice(DAMAGES)(data, recordings()[0], trial.random)
        try:
            part = pig.Run.from_bytes(data).spans
        except RunFileError:
            continue
        read += 1
        # The history is whole up to where it ends.
        assert part.tobytes() == spans[: len(part)].tobytes()
    assert read


@FAULTS.fault(
    done="Just after a snapshot, a process ends at once by `SIGTERM`, `SIGABRT`, `SIGSEGV`, "
    "`SIGBUS`, `SIGILL`, `SIGHUP` or `os._exit`.",
    holds="The file has all that the snapshot had, and says that the recording was not stopped.",
    times=7,
)
def other_ends(trial: Trial) -> None:
    names = ("SIGTERM", "SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGHUP")
    end = signal.Signals[names[trial.number]] if trial.number < len(names) else None
    child = start_child(end_after_a_snapshot, trial.path, end)
    child.join(HANGS_AFTER_S)

    assert child.exitcode == (7 if end is None else -end)
    run = pig.Run.load(trial.path)
    assert not run.complete
    assert any("not stopped" in note for note in run.notes)
    assert counts(run) == {"open/data": STEPS_BEFORE_END, "open/a": STEPS_BEFORE_END}
    assert len(run.steps) == STEPS_BEFORE_END
    assert [phase.path for phase in run.open_phases] == ["open"]


@FAULTS.fault(
    done="A loop that hangs inside nested phases of a step is killed.",
    holds="The run names the step and the phases that were open, and so does its report.",
)
def open_phases(trial: Trial) -> None:
    path = trial.path
    child = start_child(loop_until_blocked, path)

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
    assert "forward/convolution" in run.report(verbose=True, width=200)


def counts(run: Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


def load_when_there(path: Path, child: BaseProcess) -> Run:
    """The run as soon as its file has spans of all threads."""
    runs: list[Run] = []

    def there() -> bool:
        with contextlib.suppress(FileNotFoundError, RunFileError):
            runs.append(pig.Run.load(path))
        return bool(runs) and len(runs[-1].phases) == THREADS

    wait_until(there, child)
    return runs[-1]


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
