# SPDX-License-Identifier: Apache-2.0
"""A step that nobody will close is closed by the next one; every other stays open."""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step, gpu_steps
from tests.helpers.spans import dropped_of
from tests.helpers.threads import ended_thread


def completes(run: pig.Run) -> list[bool]:
    return [step.complete for step in run.steps]


# --- left over ---


def leave_loop(kept: list[Any]) -> None:
    kept.append(iter(gpu_steps(range(3))))
    for _ in kept[0]:
        raise ValueError


def leave_wrapped_loop(kept: list[Any]) -> None:
    def wrapper() -> Iterator[int]:
        yield from gpu_steps(range(3))

    kept.append(wrapper())
    for _ in kept[0]:
        raise ValueError


@pytest.mark.parametrize("leave", [leave_loop, leave_wrapped_loop])
def test_loop_whose_iterator_is_kept(leave: Callable[[list[Any]], None]) -> None:
    kept: list[Any] = []
    with pig.record() as recording:
        with pytest.raises(ValueError):
            leave(kept)
        with gpu_step():
            pass
        for _ in gpu_steps(range(2)):
            pass
    assert completes(recording.run) == [False, True, True, True]
    assert dropped_of(recording.run) == {}


def test_iterator_that_is_kept_has_no_effect_later() -> None:
    kept: list[Any] = []
    with pig.record() as recording:
        with pytest.raises(ValueError):
            leave_loop(kept)
        with gpu_step():
            next(kept[0])  # it goes on after all, within a step
            kept.clear()
        with gpu_step():
            pass
    assert completes(recording.run) == [False, True, True]
    assert recording.run.phases["step"].count == 1


def test_step_of_a_thread_that_has_ended() -> None:
    step = gpu_step()
    with pig.record() as recording:
        ended_thread(step.__enter__)
        with gpu_step():
            pass
        step.__exit__(None, None, None)
    assert completes(recording.run) == [False, True]
    assert dropped_of(recording.run) == {}


def test_phase_step_that_is_left_over() -> None:
    kept: list[Any] = []
    with pig.record() as recording, gpu_step():
        with pytest.raises(ValueError):
            leave_loop(kept)
        for _ in range(2):
            with gpu_step():
                pass
    run = recording.run
    assert completes(run) == [True]
    assert {path: phase.count for path, phase in run.phases.items()} == {"step": 3, "step/data": 1}


def test_iterator_that_comes_back_as_it_is_freed() -> None:
    """Its loader keeps it in a cycle, and holds on to it when the garbage collector comes."""
    kept: list[Iterator[int]] = []

    class Loader:
        steps: Iterator[int]

        def __iter__(self) -> Iterator[int]:
            return itertools.count()

        def __del__(self) -> None:
            kept.append(self.steps)

    def leave() -> None:
        loader = Loader()
        loader.steps = iter(gpu_steps(loader))

    with pig.record() as recording:
        leave()
        gc.collect()
        next(kept[0])
        kept.clear()
        with gpu_step():
            pass
    assert completes(recording.run) == [False, True]
    assert dropped_of(recording.run) == {}


# --- still open ---


def enter_in_a_call(_: contextlib.ExitStack) -> Callable[[], object]:
    step = gpu_step()
    step.__enter__()
    return lambda: step.__exit__(None, None, None)


def enter_by_a_stack(stack: contextlib.ExitStack) -> Callable[[], object]:
    stack.enter_context(gpu_step())
    return stack.close


def enter_by_a_generator(stack: contextlib.ExitStack) -> Callable[[], object]:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with gpu_step():
            yield

    stack.enter_context(block())
    return stack.close


def draw_in_a_call(_: contextlib.ExitStack) -> Callable[[], object]:
    steps = iter(gpu_steps(range(1)))
    next(steps)
    return lambda: next(steps, None)


def draw_in_a_coroutine(_: contextlib.ExitStack) -> Callable[[], object]:
    async def train() -> None:
        for _ in gpu_steps(range(1)):
            await asyncio.sleep(0)

    def drive() -> None:
        for _ in [1]:
            coroutine.send(None)

    coroutine = train()
    drive()

    def finish() -> None:
        with pytest.raises(StopIteration):
            coroutine.send(None)

    return finish


@pytest.mark.parametrize(
    "begin",
    [enter_in_a_call, enter_by_a_stack, enter_by_a_generator, draw_in_a_call, draw_in_a_coroutine],
)
def test_what_a_call_has_opened_stays_open(
    begin: Callable[[contextlib.ExitStack], Callable[[], object]],
) -> None:
    with pig.record() as recording, contextlib.ExitStack() as stack:
        finish = begin(stack)
        for _ in range(2):
            with gpu_step():
                pass
        finish()
    assert completes(recording.run) == [True]
    assert dropped_of(recording.run) == {"nested_steps": 2}


def test_loops_within_a_loop_stay_inside_it() -> None:
    def wrapper() -> Iterator[int]:
        yield from gpu_steps(range(2))

    def inner() -> None:
        for _ in gpu_steps(range(2)):
            pass

    with pig.record() as recording:
        for _ in wrapper():
            inner()
        for _ in zip(gpu_steps(range(2)), gpu_steps(range(2)), strict=True):
            pass
    assert completes(recording.run) == [True] * 4
    assert dropped_of(recording.run) == {"nested_steps": 6}


def test_blocks_that_are_entered_within_themselves_without_end() -> None:
    step = gpu_step()
    with pig.record() as recording:
        for _ in range(10_000):
            step.__enter__()
        for _ in range(10_000):
            step.__exit__(None, None, None)
        with gpu_step():
            pass
    assert completes(recording.run) == [True, True]
    assert recording.run.open_phases == ()
