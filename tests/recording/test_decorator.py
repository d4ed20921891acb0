# SPDX-License-Identifier: Apache-2.0

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from tests.helpers.clock import fake_clock
from tests.helpers.spans import dropped_of, spans_of, times_of

_T = TypeVar("_T")


def run_to_end(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that waits for nothing; no event loop enters the picture."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    raise AssertionError("the coroutine waits for something")


class _Suspension:
    """Something to await: its coroutine is suspended once and resumed with what is sent to it."""

    def __await__(self) -> Generator[str, object, object]:
        return (yield "suspended")


# --- functions ---


def test_function() -> None:
    @gpu_phase("f")
    def function(x: int, *rest: int, key: int = 0) -> tuple[int, tuple[int, ...], int]:
        """What it does."""
        tick(5)
        return x, rest, key

    with fake_clock() as tick, pig.record() as recording:
        assert function(1, 2, 3, key=4) == (1, (2, 3), 4)

    assert times_of(recording.run) == [("f", 0, 5)]
    assert function.__name__ == "function"
    assert function.__doc__ == "What it does."
    assert list(inspect.signature(function).parameters) == ["x", "rest", "key"]


def test_exception_of_a_function() -> None:
    error = ValueError("x")

    @gpu_phase("f")
    def function() -> None:
        tick(1)
        raise error

    with fake_clock() as tick, pig.record() as recording:
        with pytest.raises(ValueError) as caught:
            function()
        tick(1)

    assert caught.value is error
    assert times_of(recording.run) == [("f", 0, 1)]


def test_method() -> None:
    class Model:
        @gpu_phase("forward")
        def forward(self, x: int) -> int:
            return x + 1

        @staticmethod
        @gpu_phase("static")
        def static(x: int) -> int:
            return x + 2

        @classmethod
        @gpu_phase("class")
        def of_class(cls, x: int) -> int:
            return x + 3

    model = Model()
    with pig.record() as recording:
        assert (model.forward(1), model.static(1), model.of_class(1)) == (2, 3, 4)

    assert list(recording.run.phases) == ["forward", "static", "class"]


def test_callables_that_are_no_functions() -> None:
    class Loss:
        def __call__(self, x: int) -> int:
            return x + 1

    with pig.record() as recording:
        assert gpu_phase("builtin")(len)([1, 2]) == 2
        assert gpu_phase("partial")(functools.partial(int, base=2))("11") == 3
        assert gpu_phase("callable")(Loss())(1) == 2

    assert list(recording.run.phases) == ["builtin", "partial", "callable"]


def test_what_can_not_be_decorated() -> None:
    with pytest.raises(TypeError, match="decorate its methods"):
        gpu_phase("x")(ValueError)
    with pytest.raises(TypeError, match="to time a block"):
        gpu_phase("x")(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="decorates one function"):
        gpu_phase("x")()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="decorates one function"):
        gpu_phase("x")(len, len)  # type: ignore[call-arg]


def test_call_across_the_edges_of_a_recording() -> None:
    @gpu_phase("f")
    def across(change: Callable[[], None]) -> None:
        change()

    recordings: list[pig.Recording] = []
    across(lambda: recordings.append(pig.start()))
    across(lambda: None)
    across(lambda: recordings.append(pig.start()) if recordings[0].stop() else None)
    across(lambda: None)

    runs = [recording.stop() for recording in recordings]
    assert [run.phases["f"].count for run in runs] == [1, 1]
    assert [len(run.open_phases) for run in runs] == [1, 0]
    assert [dropped_of(run) for run in runs] == [{}, {}]


# --- async functions ---


def test_async_function_is_one_span_while_it_is_suspended_too() -> None:
    @gpu_phase("f")
    async def function(x: int) -> tuple[int, object]:
        tick(1)
        got = await _Suspension()
        tick(1)
        return x, got

    with fake_clock() as tick, pig.record() as recording:
        coroutine = function(7)
        tick(10)  # not begun yet
        assert coroutine.send(None) == "suspended"
        tick(100)
        with pytest.raises(StopIteration) as stop:
            coroutine.send("sent")

    assert stop.value.value == (7, "sent")
    assert inspect.iscoroutinefunction(function)
    assert times_of(recording.run) == [("f", 10, 112)]


def test_async_function_that_raises_is_cancelled_or_closed() -> None:
    @gpu_phase("f")
    async def function() -> None:
        await _Suspension()
        raise ValueError("x")

    with fake_clock() as tick, pig.record() as recording:
        raising, cancelled, closed = function(), function(), function()
        for coroutine in (raising, cancelled, closed):
            coroutine.send(None)
            tick(1)
        closed.close()
        with pytest.raises(asyncio.CancelledError):
            cancelled.throw(asyncio.CancelledError())
        tick(1)
        with pytest.raises(ValueError, match="x"):
            raising.send(None)

    # Opened one in the other, closed in an order of their own.
    assert times_of(recording.run) == [("f/f/f", 2, 3), ("f/f", 1, 3), ("f", 0, 4)]
    assert dropped_of(recording.run) == {}


# --- generators ---


def test_generator_is_one_span_from_its_first_step_to_its_end() -> None:
    @gpu_phase("g")
    def generate(n: int) -> Generator[int, None, str]:
        for i in range(n):
            tick(1)
            yield i
        return "returned"

    def outer() -> Generator[int, None, None]:
        results.append((yield from generate(2)))

    results: list[str] = []
    with fake_clock() as tick, pig.record() as recording:
        generator = outer()
        tick(10)
        for _ in generator:
            tick(100)

    assert results == ["returned"]
    assert inspect.isgeneratorfunction(generate)
    assert times_of(recording.run) == [("g", 10, 212)]


def test_generator_that_is_never_started_records_nothing() -> None:
    @gpu_phase("g")
    def generate() -> Iterator[int]:
        yield 1

    with pig.record() as recording:
        generate()
        closed = generate()
        assert isinstance(closed, Generator)
        closed.close()

    assert len(recording.run.spans) == 0
    assert recording.run.open_phases == ()


def test_send_throw_and_close_reach_a_generator() -> None:
    seen: list[object] = []

    @gpu_phase("g")
    def generate() -> Generator[object, object, None]:
        answer: object = "first"
        try:
            while True:
                try:
                    answer = yield answer
                    seen.append(answer)
                except ValueError as error:
                    seen.append(error)
                    answer = "caught"
        finally:
            seen.append("closed")

    error = ValueError("x")
    with fake_clock() as tick, pig.record() as recording:
        generator = generate()
        assert next(generator) == "first"
        assert generator.send("sent") == "sent"
        assert generator.throw(error) == "caught"
        tick(1)
        generator.close()
        tick(1)

    assert seen == ["sent", error, "closed"]
    assert times_of(recording.run) == [("g", 0, 1)]


def test_generator_that_raises() -> None:
    error = ValueError("x")

    @gpu_phase("g")
    def generate() -> Iterator[int]:
        yield 1
        raise error

    with fake_clock() as tick, pig.record() as recording:
        generator = generate()
        next(generator)
        tick(1)
        with pytest.raises(ValueError) as caught:
            next(generator)
        tick(1)

    assert caught.value is error
    assert times_of(recording.run) == [("g", 0, 1)]


def test_interleaved_generators_close_their_own_spans() -> None:
    @gpu_phase("g")
    def generate() -> Iterator[None]:
        yield

    with fake_clock() as tick, pig.record() as recording:
        first, second = generate(), generate()
        next(first)
        tick(1)
        next(second)
        tick(10)
        assert next(first, None) is None
        with gpu_phase("inner"):  # in the second, which is still open
            tick(100)
        assert next(second, None) is None

    assert [
        (span.path, span.begin_ns, span.end_ns, span.self_ns) for span in spans_of(recording.run)
    ] == [
        ("g", 0, 11, 11),
        ("g/g/inner", 11, 111, 100),
        ("g/g", 1, 111, 10),
    ]
    assert dropped_of(recording.run) == {}


# --- async generators ---


def test_async_generator_is_one_span() -> None:
    @gpu_phase("g")
    async def generate(n: int) -> AsyncIterator[int]:
        for i in range(n):
            tick(1)
            yield i

    async def main() -> list[int]:
        generator = generate(2)
        tick(10)
        got = []
        async for i in generator:
            got.append(i)
            tick(100)
        return got

    with fake_clock() as tick, pig.record() as recording:
        assert run_to_end(main()) == [0, 1]

    assert inspect.isasyncgenfunction(generate)
    assert times_of(recording.run) == [("g", 10, 212)]


def test_async_generator_that_is_never_started_records_nothing() -> None:
    @gpu_phase("g")
    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    with pig.record() as recording:
        run_to_end(generate().aclose())

    assert len(recording.run.spans) == 0
    assert recording.run.open_phases == ()


def test_send_throw_and_close_reach_an_async_generator() -> None:
    seen: list[object] = []

    @gpu_phase("g")
    async def generate() -> AsyncGenerator[object, object]:
        answer: object = "first"
        try:
            while True:
                try:
                    answer = yield answer
                    seen.append(answer)
                except ValueError as error:
                    seen.append(error)
                    answer = "caught"
        finally:
            seen.append("closed")

    error = ValueError("x")

    async def main() -> None:
        generator = generate()
        assert await generator.__anext__() == "first"
        assert await generator.asend("sent") == "sent"
        assert await generator.athrow(error) == "caught"
        tick(1)
        await generator.aclose()
        tick(1)

    with fake_clock() as tick, pig.record() as recording:
        run_to_end(main())

    assert seen == ["sent", error, "closed"]
    assert times_of(recording.run) == [("g", 0, 1)]


@pytest.mark.parametrize("thrown", [ValueError("x"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_exception_thrown_through_an_async_generator(thrown: BaseException) -> None:
    @gpu_phase("g")
    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    async def main() -> None:
        generator = generate()
        await generator.__anext__()
        tick(1)
        with pytest.raises(type(thrown)) as caught:
            await generator.athrow(thrown)
        tick(1)
        assert caught.value is thrown
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()

    with fake_clock() as tick, pig.record() as recording:
        run_to_end(main())

    assert times_of(recording.run) == [("g", 0, 1)]


def test_wrong_arguments_leave_no_phase_open() -> None:
    @gpu_phase("a")
    async def generator(n: int) -> AsyncGenerator[int, None]:
        yield n

    async def main() -> None:
        with pytest.raises(TypeError):
            async for _ in generator():  # type: ignore[call-arg]
                pass

    with pig.record() as recording:
        asyncio.run(main())
        with gpu_phase("after"):
            pass
    assert recording.run.paths == ("after",)


def test_interleaved_async_generators_close_their_own_spans() -> None:
    @gpu_phase("g")
    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    async def main() -> None:
        first, second = generate(), generate()
        await first.__anext__()
        tick(1)
        await second.__anext__()
        tick(10)
        await first.aclose()
        tick(100)
        await second.aclose()

    with fake_clock() as tick, pig.record() as recording:
        run_to_end(main())

    assert times_of(recording.run) == [("g", 0, 11), ("g/g", 1, 111)]
    assert dropped_of(recording.run) == {}
