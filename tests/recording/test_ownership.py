# SPDX-License-Identifier: Apache-2.0
"""A process has one recording, with one owner: among threads, and where an exception strikes."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from tests.helpers.interrupts import Interrupter
from tests.helpers.sinks import KeepingSink

THREADS = 8


def counts(run: pig.Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


def in_threads(work: Callable[[int], None]) -> None:
    """Calls a function on several threads, which take turns as often as can be."""
    errors: list[BaseException] = []
    ready = threading.Barrier(THREADS)

    def target(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target, args=[number]) for number in range(THREADS)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    for error in errors:
        raise error


def test_threads_that_stop_one_recording_get_one_run() -> None:
    recording = pig.start()
    with gpu_phase("a"):
        pass
    runs: list[pig.Run] = []
    in_threads(lambda _: runs.append(recording.stop()))
    assert len(runs) == THREADS
    assert len(set(map(id, runs))) == 1
    assert counts(runs[0]) == {"a": 1}


def test_snapshots_while_another_thread_stops_are_of_the_same_run() -> None:
    recording = pig.start()
    with gpu_phase("a"):
        pass
    runs: list[pig.Run] = []
    in_threads(lambda number: runs.append(recording.snapshot() if number else recording.stop()))
    assert [counts(run) for run in runs] == [{"a": 1}] * THREADS


# --- an exception wherever Python handles a signal ---


def first_of_each(
    interrupter: Interrupter, prepare: Callable[[], Callable[[], object]]
) -> list[int]:
    """When each instruction of what is prepared is reached for the first time, of those before
    which Python may handle a signal."""
    for _ in range(2):  # Python 3.12 reports a function's instructions from the second call on
        interrupter.call(prepare())
    first: dict[object, int] = {}
    for at in interrupter.signal_points():
        first.setdefault(interrupter.seen[at], at)
    return list(first.values())


@pytest.mark.parametrize(
    "into", ["memory", pytest.param("file and sink", marks=pytest.mark.thorough)]
)
def test_stop_that_is_interrupted_goes_on_with_the_next(tmp_path: Path, into: str) -> None:
    interrupter = Interrupter(modules=("recording/recording.py", "at_exit.py"))
    path = None if into == "memory" else tmp_path / "a.gpurun"

    def begin() -> tuple[pig.Recording, KeepingSink]:
        sink = KeepingSink()
        recording = pig.start(path, overwrite=True)
        if path is not None:
            recording.add_sink(sink)
        with gpu_phase("a"):
            pass
        return recording, sink

    instructions = first_of_each(interrupter, lambda: begin()[0].stop)
    hits = 0
    for at in instructions:
        recording, sink = begin()
        # The recorder's own callbacks run in between: an instruction may not be reached.
        hits += interrupter.call(recording.stop, at)
        run = recording.stop()
        assert run.complete, at
        assert run.notes == (), at
        assert counts(run) == {"a": 1}, at
        assert sum(update.final for update in sink.updates) == (path is not None), at
        assert sink.closed == (path is not None), at
    assert hits > 0


def test_stop_within_stop() -> None:
    """The handler of a signal stops the recording that is being stopped."""
    interrupter = Interrupter(modules=("recording/program_watch.py", "sinks/feeder.py"))

    def begin() -> tuple[pig.Recording, KeepingSink]:
        sink = KeepingSink()
        recording = pig.start()
        recording.add_sink(sink)
        return recording, sink

    for at in first_of_each(interrupter, lambda: begin()[0].stop):
        recording, sink = begin()
        interrupter.call(recording.stop, at, handler=recording.stop)
        assert recording.stop().complete, at
        assert sum(update.final for update in sink.updates) == 1, at
        assert sink.closed, at


@pytest.mark.thorough
def test_stop_that_was_interrupted_ends_as_another_starts() -> None:
    interrupter = Interrupter(modules=("recording/recording.py", "at_exit.py"))
    for at in first_of_each(interrupter, lambda: pig.start().stop):
        first = pig.start()
        with gpu_phase("a"):
            pass
        interrupter.call(first.stop, at)
        try:
            with pig.record() as second, gpu_phase("b"):
                pass
        except pig.RecordingActiveError:  # it had not begun to stop
            first.stop()
            with pig.record() as second, gpu_phase("b"):
                pass
        assert counts(first.stop()) == {"a": 1}, at
        assert counts(second.run) == {"b": 1}, at


def block() -> None:
    with pig.record() as recording, gpu_step(), gpu_phase("a"):
        pass
    assert recording.run.complete


@pytest.mark.thorough
def test_block_that_is_interrupted_is_no_obstacle_to_the_next() -> None:
    """Not even where a traceback keeps what is left of it."""
    kept: list[BaseException] = []
    of_block = (pig.Recording.__enter__, pig.Recording.__exit__, pig.Recording._start)
    interrupter = Interrupter(block, *of_block, modules=())

    def interrupted() -> None:
        try:
            block()
        except KeyboardInterrupt as error:
            kept.append(error)
            raise

    for at in first_of_each(interrupter, lambda: block):
        interrupter.call(interrupted, at)
        with pig.record() as recording, gpu_step(), gpu_phase("b"):
            pass
        assert counts(recording.run) == {"b": 1}, at
        assert [step.complete for step in recording.run.steps] == [True], at
    assert kept
