# SPDX-License-Identifier: Apache-2.0
"""Tasks, greenlets and generators take turns on a thread: each has phases of its own."""

import asyncio
import contextvars
import gc
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.core.run import Run
from tests.helpers.clock import fake_clock
from tests.helpers.spans import Span, dropped_of, spans_of, times_of
from tests.helpers.threads import on_thread

TASKS = 10
# Tasks that are in a phase at one time, and how many of these a thread has room for.
TOO_MANY, STACK = 2500, 1023


def counts_of(run: Run) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases.items()}


def recorded(main: Callable[[], Coroutine[Any, Any, object]]) -> Run:
    with pig.record() as recording:
        asyncio.run(main())
    assert dropped_of(recording.run) == {}
    assert recording.run.open_phases == ()
    return recording.run


async def take_turns(number: int, rounds: int = 3) -> None:
    for _ in range(rounds):
        with gpu_phase(f"task{number}"):
            await asyncio.sleep(0)
            with gpu_phase("load"):
                await asyncio.sleep(0)
            await asyncio.sleep(0)


async def ten_tasks() -> None:
    await asyncio.gather(*(take_turns(number) for number in range(TASKS)))


TEN_TASKS = {f"task{number}{inner}": 3 for number in range(TASKS) for inner in ("", "/load")}

# --- asyncio ---


def test_tasks_nest_in_what_is_open_around_the_event_loop() -> None:
    async def main() -> None:
        with gpu_phase("main"):
            await ten_tasks()

    with pig.record() as recording, gpu_phase("epoch"):
        asyncio.run(main())

    inside = {f"epoch/{path}": count for path, count in TEN_TASKS.items()}
    assert counts_of(recording.run) == {"epoch": 1, "epoch/main": 1, **inside}


def test_time_of_a_task_that_is_suspended_counts_in_its_phase_alone() -> None:
    async def first() -> None:
        with gpu_phase("a"):
            tick(1)
            await asyncio.sleep(0)  # the second begins
            tick(10)
            with gpu_phase("in"):
                tick(100)
                await asyncio.sleep(0)  # the second ends

    async def second() -> None:
        with gpu_phase("b"):
            tick(1000)
            await asyncio.sleep(0)
            tick(10_000)

    async def main() -> None:
        await asyncio.gather(first(), second())

    with fake_clock() as tick, pig.record() as recording:
        asyncio.run(main())

    assert spans_of(recording.run) == [
        Span("b", 1, 11_111, 11_110, -1, 0, "MainThread", False),
        Span("a/in", 1011, 11_111, 10_100, -1, 1, "MainThread", False),
        Span("a", 0, 11_111, 1011, -1, 0, "MainThread", False),
    ]


def test_cancelled_tasks_close_their_phases() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(take_turns(number)) for number in range(TASKS)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with gpu_phase("last"):
            pass

    cancelled = {f"task{number}{inner}": 1 for number in range(0, 10, 2) for inner in ("", "/load")}
    assert counts_of(recorded(main)) == {**TEN_TASKS, **cancelled, "last": 1}


if sys.version_info >= (3, 11):  # that has TaskGroup

    def test_tasks_that_a_task_makes_are_not_inside_its_phase() -> None:
        async def parent(number: int) -> None:
            async with asyncio.TaskGroup() as group:
                with gpu_phase(f"parent{number}"):
                    group.create_task(take_turns(number, rounds=1))
                    await asyncio.sleep(0)
                    with gpu_phase("load"):
                        await asyncio.sleep(0)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(parent(number))

        names = [f"{kind}{number}" for number in range(3) for kind in ("parent", "task")]
        assert counts_of(recorded(main)) == {
            f"{name}{inner}": 1 for name in names for inner in ("", "/load")
        }


if sys.version_info >= (3, 12):  # that has eager tasks

    def test_an_eager_task_begins_in_the_phase_of_its_maker() -> None:
        async def main() -> None:
            with gpu_phase("a"):
                task = asyncio.Task(
                    take_turns(0, rounds=2), loop=asyncio.get_running_loop(), eager_start=True
                )
            await task

        assert counts_of(recorded(main)) == {
            "a": 1,
            "a/task0": 1,
            "a/task0/load": 1,
            "task0": 1,
            "task0/load": 1,
        }


def test_callbacks_may_begin_and_end_a_phase_in_turn() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(gpu_phase("a").begin)
        loop.call_soon(tick, 5)
        loop.call_soon(gpu_phase("a").end)
        await asyncio.sleep(0)

    with fake_clock() as tick, pig.record() as recording:
        asyncio.run(main())

    assert times_of(recording.run) == [("a", 0, 5)]
    assert dropped_of(recording.run) == {}


def test_end_of_a_phase_from_before_the_recording_closes_no_other_tasks() -> None:
    async def wait_in_phase() -> None:
        with gpu_phase("a"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def main() -> Run:
        before = asyncio.create_task(wait_in_phase())
        await asyncio.sleep(0)
        with pig.record() as recording:
            inside = asyncio.create_task(wait_in_phase())
            await before
            tick(5)
            await inside
        return recording.run

    with fake_clock() as tick:
        run = asyncio.run(main())

    assert times_of(run) == [("a", 0, 5)]
    assert dropped_of(run) == {"unmatched_ends": 1}


@pytest.mark.parametrize("is_block", [True, False])
def test_more_tasks_in_phases_than_are_kept(is_block: bool) -> None:
    async def wait_in_phase(number: int) -> None:
        if is_block:
            with gpu_phase("a"):
                await asyncio.sleep(0)
        else:
            gpu_phase("a").begin()
            await asyncio.sleep(0)
            gpu_phase("a").end()

    async def main() -> None:
        await asyncio.gather(*map(wait_in_phase, range(TOO_MANY)))
        with gpu_phase("b"), gpu_phase("c"):
            pass

    with pig.record() as recording:
        asyncio.run(main())

    assert counts_of(recording.run) == {"a": STACK, "b": 1, "b/c": 1}
    assert dropped_of(recording.run) == {"depth": TOO_MANY - STACK}
    assert recording.run.open_phases == ()


def test_tasks_that_are_always_in_a_phase_need_no_more_room() -> None:
    """There is no moment without an open phase, and a thread keeps only so many."""

    async def work() -> None:
        for _ in range(2 * STACK):
            with gpu_phase("a"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work(), work(), work())

    assert counts_of(recorded(main)) == {"a": 6 * STACK}


def test_spans_of_all_tasks_belong_to_the_open_step() -> None:
    async def train() -> None:
        for _ in pig.gpu_steps(range(3)):
            with gpu_phase("forward"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(train(), take_turns(0, rounds=1))

    run = recorded(main)
    assert [step.complete for step in run.steps] == [True] * 3
    assert {(span.path, span.step, span.on_step_thread) for span in spans_of(run)} == {
        *(("data", step, True) for step in range(3)),
        *(("forward", step, True) for step in range(3)),
        ("task0", 0, True),
        ("task0/load", 1, True),
    }


def test_a_report_of_phases_that_overlap_says_so() -> None:
    async def train() -> None:
        for _ in pig.gpu_steps(range(30)):
            with gpu_phase("forward"):
                tick(100)
                await asyncio.sleep(0)

    async def prefetch(done: asyncio.Event) -> None:
        while not done.is_set():
            with gpu_phase("prefetch"):
                await asyncio.sleep(0)
                tick(10)

    async def main() -> None:
        done = asyncio.Event()
        background = asyncio.create_task(prefetch(done))
        await train()
        done.set()
        await background

    with fake_clock() as tick, pig.record() as recording:
        asyncio.run(main())

    report = recording.run.report(verbose=True)
    assert "Phases overlap" in report
    assert "of which the host spends" not in report
    assert "Phases overlap" not in one_task().report(verbose=True)


def one_task() -> Run:
    with fake_clock() as tick, pig.record() as recording:
        for _ in pig.gpu_steps(range(30)):
            with gpu_phase("forward"):
                tick(100)
    assert "of which the host spends" in recording.run.report(verbose=True)
    return recording.run


Tree: TypeAlias = "tuple[tuple[str, Tree], ...]"  # an empty name: another task's turn

trees: st.SearchStrategy[Tree] = st.recursive(
    st.just(()),
    lambda inner: st.lists(st.tuples(st.sampled_from(("", "a", "b")), inner), max_size=4).map(
        tuple
    ),
    max_leaves=12,
)


async def run_tree(tree: Tree) -> None:
    for name, inner in tree:
        if name:
            with gpu_phase(name):
                await run_tree(inner)
        else:
            await asyncio.sleep(0)


def paths_of(tree: Tree, around: str = "") -> Counter[str]:
    paths: Counter[str] = Counter()
    for name, inner in tree:
        if name:
            paths += Counter([around + name]) + paths_of(inner, f"{around}{name}/")
    return paths


@settings(max_examples=50, derandomize=True)
@given(st.lists(trees, min_size=2, max_size=6))
def test_every_task_has_the_tree_that_it_has_alone(tasks: list[Tree]) -> None:
    async def main() -> None:
        await asyncio.gather(*map(run_tree, tasks))

    assert counts_of(recorded(main)) == sum(map(paths_of, tasks), Counter())


# --- contexts of plain code ---


def test_what_runs_in_a_context_nests_in_the_phase_around_it() -> None:
    def inner() -> None:
        with gpu_phase("b"):
            contextvars.copy_context().run(innermost)
        variable.set(2)

    def innermost() -> None:
        with gpu_phase("c"):
            pass

    variable = contextvars.ContextVar("variable", default=1)
    with pig.record() as recording, gpu_phase("a"):
        variable.set(3)
        contextvars.copy_context().run(inner)
        with gpu_phase("d"):
            pass

    assert counts_of(recording.run) == {"a": 1, "a/b": 1, "a/b/c": 1, "a/d": 1}


def test_the_first_variable_of_a_thread_is_no_other_task() -> None:
    """A thread has no context until it needs one."""

    def target() -> None:
        with gpu_phase("a"):
            variable.set(2)
            with gpu_phase("b"):
                pass

    variable = contextvars.ContextVar("variable", default=1)
    with pig.record() as recording:
        on_thread(target)

    assert counts_of(recording.run) == {"a": 1, "a/b": 1}


# --- generators ---


def load(name: str = "load") -> Generator[None, None, None]:
    with gpu_phase(name):
        yield
        yield


def freed(generators: list[Generator[None, None, None]]) -> None:
    generators.clear()
    gc.collect()


@pytest.mark.parametrize("end", [freed, lambda generators: generators[0].close()])
def test_generator_that_another_thread_ends(
    end: Callable[[list[Generator[None, None, None]]], None],
) -> None:
    def target() -> None:
        with gpu_phase("load"):  # stays open
            end(generators)
            tick(10)

    with fake_clock() as tick, pig.record() as recording:
        generators = [load()]
        next(generators[0])
        tick(1)
        on_thread(target, name="worker")
        tick(100)
        with gpu_phase("b"):  # outside
            tick(1000)

    assert sorted(spans_of(recording.run)) == [
        Span("b", 111, 1111, 1000, -1, 0, "MainThread", False),
        Span("load", 0, 1, 1, -1, 0, "MainThread", False),
        Span("load", 1, 11, 10, -1, 0, "worker", False),
    ]
    assert dropped_of(recording.run) == {}


def test_generator_from_before_the_recording_ends_nothing_of_another_thread() -> None:
    generator = load()
    next(generator)
    with fake_clock() as tick, pig.record() as recording, gpu_phase("load"):
        on_thread(generator.close)
        tick(1)

    assert times_of(recording.run) == [("load", 0, 1)]
    assert dropped_of(recording.run) == {"unmatched_ends": 1}


# --- greenlets ---


def test_greenlets_have_trees_of_their_own() -> None:
    greenlet = pytest.importorskip("greenlet")

    def work(number: int) -> None:
        with gpu_phase(f"task{number}"):
            main.switch()
            with gpu_phase("load"):
                main.switch()
            main.switch()

    main = greenlet.getcurrent()
    with pig.record() as recording, gpu_phase("main"):
        greenlets = [greenlet.greenlet(work) for _ in range(TASKS)]
        for number, each in enumerate(greenlets):
            each.switch(number)
        for _ in range(3):
            with gpu_phase("turn"):
                for each in greenlets:
                    each.switch()

    counts = {path: 1 for path in TEN_TASKS}
    assert counts_of(recording.run) == {**counts, "main": 1, "main/turn": 3}
    assert dropped_of(recording.run) == {}
    assert recording.run.open_phases == ()
