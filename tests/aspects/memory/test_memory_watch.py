# SPDX-License-Identifier: Apache-2.0
"""Readings of memory at the boundaries of phases and steps, with a simulated allocator."""

import gc
import math
import threading
from collections.abc import Iterator

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.native import native
from tests.helpers.allocator import SimulatedAllocator

STEP_BEGIN, PHASE_BEGIN, PHASE_END, STEP_END = range(4)


@pytest.fixture
def recording() -> Iterator[pig.Recording]:
    with pig.record(memory=False) as recording:
        yield recording
        native.stop_memory_watch()


def kinds_and_depths() -> list[tuple[int, int]]:
    return [(reading[0], reading[3]) for reading in native.take_memory_readings()]


@pytest.mark.usefixtures("recording")
def test_what_torch_returns_is_understood() -> None:
    allocator = SimulatedAllocator()
    allocator.allocate(3)
    nodes = iter([7, 9])
    native.start_memory_watch(
        allocator.statistics, int, budget=math.inf, next_node=lambda: next(nodes)
    )
    with gpu_step():
        pass
    readings = [reading[4:] for reading in native.take_memory_readings()]
    assert readings == [(3, 3, 3, 3, 3, 0, 7), (3, 3, 3, 3, 3, 0, 9)]


@pytest.mark.usefixtures("recording")
def test_only_steps_within_the_budget_are_read() -> None:
    native.start_memory_watch(SimulatedAllocator().statistics, int, budget=1e-12)
    for _ in range(5):
        with gpu_step():
            pass
    # The first three, whatever they cost.
    assert kinds_and_depths() == [(STEP_BEGIN, 0), (STEP_END, 0)] * 3


@pytest.mark.usefixtures("recording")
def test_other_threads_phases_outside_steps_and_dropped_steps_are_left_out() -> None:
    native.start_memory_watch(SimulatedAllocator().statistics, int, budget=math.inf)
    with gpu_phase("outside"):
        pass
    for _ in gpu_steps([]):
        pass
    with gpu_step():
        thread = threading.Thread(target=gpu_phase("beside")(lambda: None))
        thread.start()
        thread.join()
    assert kinds_and_depths() == [(STEP_BEGIN, 0), (STEP_END, 0)]


@pytest.mark.usefixtures("recording")
def test_a_source_that_raises_is_asked_once_in_a_step() -> None:
    asked = []

    def fail() -> object:
        asked.append(1)
        raise ValueError("no statistics")

    native.start_memory_watch(fail, int, budget=math.inf)
    with pytest.raises(KeyError), gpu_step(), gpu_phase("forward"):
        raise KeyError("the program's own")
    assert native.take_memory_readings() == []
    assert native.lost_memory_readings() == len(asked) == 1


@pytest.mark.usefixtures("recording")
def test_a_phase_within_a_reading_is_not_read() -> None:
    allocator = SimulatedAllocator()

    def read() -> dict[str, object]:
        with gpu_phase("within"):
            return allocator.statistics()

    native.start_memory_watch(read, int, budget=math.inf)
    with gpu_step(), gpu_phase("forward"):
        gc.collect()
    assert [depth for _, depth in kinds_and_depths()] == [0] * 4


@pytest.mark.usefixtures("recording")
def test_a_step_with_very_many_phases_is_read_up_to_a_limit() -> None:
    native.start_memory_watch(SimulatedAllocator().statistics, int, budget=math.inf)
    with gpu_step():
        for _ in range(2000):
            with gpu_phase("a"):
                pass
    readings = kinds_and_depths()
    assert native.lost_memory_readings() == 1
    assert len(readings) == 1025
    assert readings[-1] == (STEP_END, 0)


@pytest.mark.usefixtures("recording")
def test_readings_are_taken_before_they_are_too_many() -> None:
    taken = []
    native.start_memory_watch(
        SimulatedAllocator().statistics,
        lambda: taken.append(len(native.take_memory_readings())),
        budget=math.inf,
    )
    steps = 20  # of 1,025 readings each: more than there is room for
    for _ in range(steps):
        with gpu_step():
            for _ in range(2000):
                with gpu_phase("a"):
                    pass
    assert sum(taken) + len(native.take_memory_readings()) == steps * 1025
    assert native.lost_memory_readings() == steps


def test_a_place_is_the_innermost_phase(recording: pig.Recording) -> None:
    assert native.open_place() == (-1, -1, None)
    places = []
    with gpu_step():
        pass
    with gpu_step(), gpu_phase("a"), gpu_phase("b"):
        places.append(native.open_place())
        # That of the step's thread, where this one has none.
        thread = threading.Thread(target=lambda: places.append(native.open_place()))
        thread.start()
        thread.join()
    run = recording.snapshot()
    assert [(run.paths[path], step) for path, step, _ in places] == [("a/b", 1)] * 2


def test_the_log_in_memory_is_not_counted() -> None:
    with pig.record(memory=False) as recording:
        native.start_memory_watch(None, lambda: None, budget=math.inf)
        with gpu_step():
            pass
        for _ in range(40):  # outside steps nothing is read
            for _ in range(5_000):
                with gpu_phase("data"):
                    pass
            native.harvest()
        with gpu_step():
            pass
        (before, *_, after) = native.take_memory_readings()
        log = native.log_bytes(recording)
        native.stop_memory_watch()
    assert log is not None
    assert len(log) > 6_000_000
    assert after[4] - before[4] < len(log) / 2
