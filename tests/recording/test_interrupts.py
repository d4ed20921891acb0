# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C wherever Python handles it, in our code and the loop around: what it hits is lost, and no
more."""

import asyncio
import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.native import native
from tests.helpers.clock import fake_clock
from tests.helpers.interrupts import Interrupter
from tests.helpers.spans import dropped_of

ITEMS = 2


@gpu_phase("function")
def function() -> None:
    pass


@gpu_phase("generator")
def generator() -> Iterator[int]:
    yield 1


@gpu_phase("async function")
async def async_function() -> None:
    await asyncio.sleep(0)


@gpu_phase("async generator")
async def async_generator() -> AsyncIterator[int]:
    yield 1


def loop_over_items() -> None:
    for _ in gpu_steps(range(ITEMS)):
        function()


def loop_over_a_kept_iterator() -> None:
    steps = iter(gpu_steps(range(ITEMS), samples=lambda item: 1))
    for _ in steps:
        function()


def loop_of_blocks() -> None:
    for _ in range(ITEMS):
        with gpu_step():
            function()


def loop_of_kept_blocks() -> None:
    for _ in range(ITEMS):
        with gpu_step() as step:
            function()
        assert step is not None


@gpu_step()
def decorated_step() -> None:
    function()


def loop_of_calls() -> None:
    for _ in range(ITEMS):
        decorated_step()


def loop_of_suspended_calls() -> None:
    for _ in range(ITEMS):
        with gpu_step():
            list(generator())
            drive(main())


async def main() -> None:
    await async_function()
    async for _ in async_generator():
        pass


def drive(coroutine: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(StopIteration):
        while True:
            coroutine.send(None)


LOOPS = [
    loop_over_items,
    pytest.param(loop_over_a_kept_iterator, marks=pytest.mark.thorough),
    loop_of_blocks,
    pytest.param(loop_of_kept_blocks, marks=pytest.mark.thorough),
    loop_of_calls,
    loop_of_suspended_calls,
]


def after() -> None:
    """What is recorded after the interrupt, in the same recording."""
    for _ in gpu_steps(range(ITEMS)):
        function()
    with gpu_step():
        function()


PATHS = {"data", "function", "generator", "async function", "async generator"}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("loop", LOOPS)
def test_interrupt_hits_one_step_and_no_other(loop: Callable[[], None]) -> None:
    # Tracebacks are kept, as notebooks do, and with them the variables of the loop.
    kept: list[BaseException] = []
    parts = (loop, function, generator, async_function, async_generator, decorated_step, main)
    interrupter = Interrupter(*map(inspect.unwrap, parts))

    def interrupted() -> None:
        try:
            loop()
        except KeyboardInterrupt as interrupt:
            kept.append(interrupt)
            raise

    with pig.record():
        for _ in range(2):  # Python 3.12 reports a function's instructions from the second call on
            interrupter.call(loop)
    points = [*interrupter.signal_points(), len(interrupter.seen)]
    assert len(points) > 7 * ITEMS
    hits = []
    with fake_clock() as tick, pig.record() as recording:
        for at in points:
            hits.append(interrupter.call(interrupted, at))
            tick(1)
            after()
            tick(1)
    run = recording.run
    # Those of the interrupted loop, and those after it, which begin a nanosecond later.
    complete: list[list[bool]] = [[] for _ in range(2 * len(hits))]
    for step in run.steps:
        complete[step.begin_ns].append(step.complete)
    for number, (at, was_hit) in enumerate(zip(points, hits, strict=True)):
        assert complete[2 * number].count(False) <= was_hit, f"interrupted at {at}"
        assert complete[2 * number + 1] == [True] * (ITEMS + 1), f"interrupted at {at}"
    assert run.open_phases == ()
    assert set(run.paths) <= PATHS
    assert dropped_of(run) == {}
    assert any(hits) and not hits[-1]
    assert complete[-2] == [True] * ITEMS
    kept.clear()
    gc.collect()  # coroutines that were never awaited are reported here


def test_interrupt_of_what_the_recorder_calls_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: pig.Recording) -> None:
        raise KeyboardInterrupt

    with (
        fake_clock() as tick,
        pig.record(),
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
    ):
        patch.setattr(pig.Recording, "_tell_of_program", interrupt)
        tick(10**10)
        native.harvest()  # which finds that it is time to look at the program
        for _ in range(1000):  # Python calls between two rounds
            pass
