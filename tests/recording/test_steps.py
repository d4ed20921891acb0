# SPDX-License-Identifier: Apache-2.0

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import Step
from tests.helpers.clock import fake_clock
from tests.helpers.spans import Span, dropped_of, spans_of, times_of


def slow_loader(tick: Callable[[int], None], items: int) -> Iterator[int]:
    """Takes 100 ns for an item, and 1000 ns to find that there is none."""
    for i in range(items):
        tick(100)
        yield i
    tick(1000)


def step_times(run: Run) -> list[tuple[int, int, int]]:
    return [(step.index, step.begin_ns, step.end_ns) for step in run.steps]


def record_steps(iterable: Iterable[object], **options: object) -> list[Step]:
    with pig.record() as recording:
        for _ in gpu_steps(iterable, **options):  # type: ignore[arg-type]
            pass
    return list(recording.run.steps)


# --- gpu_steps ---


def test_loop_tells_where_the_training_goes_on() -> None:
    """Before its first step, again in each epoch, and not within a step of another loop."""
    with fake_clock() as tick, pig.record() as recording:
        for epoch in range(3):
            tick(5)
            for _ in gpu_steps(range(10), start=70 + 10 * epoch):
                tick(1)
                for _ in gpu_steps([0], start=3):
                    pass
    assert recording.run.environment["step_numbers"] == [
        {"at_ns": 5, "number": 70},
        {"at_ns": 20, "number": 80},
        {"at_ns": 35, "number": 90},
    ]


def test_numbers_that_are_told_are_bounded(tmp_path: Path) -> None:
    """The first one stays, and the newest; a run file says so while it is written."""
    path = tmp_path / "a.gpurun"
    with pig.record(path) as recording:
        for number in range(100):
            for _ in gpu_steps([0], start=number):
                pass
        recording.snapshot()
        numbers = [one["number"] for one in Run.load(path).environment["step_numbers"]]
    assert numbers == [0, *range(36, 100)]


@pytest.mark.parametrize("start", [-1, 0.5, "7"])
def test_start_that_is_no_number_of_steps(start: object) -> None:
    with pytest.raises(ValueError, match="start must be an int of at least 0"):
        gpu_steps([0], start=start)  # type: ignore[arg-type]


def test_step_holds_the_wait_for_its_item() -> None:
    with fake_clock() as tick, pig.record() as recording:
        tick(5)
        for _ in gpu_steps(slow_loader(tick, 2)):
            with gpu_phase("forward"):
                tick(10)
            tick(1)

    run = recording.run
    assert list(run.steps) == [
        Step(0, 5, 116, None, 1, True, 0),
        Step(1, 116, 227, None, 1, True, 0),
    ]
    assert spans_of(run) == [
        Span("data", 5, 105, 100, 0, 0, "MainThread", True),
        Span("forward", 105, 115, 10, 0, 0, "MainThread", True),
        Span("data", 116, 216, 100, 1, 0, "MainThread", True),
        Span("forward", 216, 226, 10, 1, 0, "MainThread", True),
    ]
    assert run.open_step is None
    assert dropped_of(run) == {}


def test_items_come_through_in_order() -> None:
    with pig.record():
        assert list(gpu_steps("abc")) == ["a", "b", "c"]
    assert list(gpu_steps("abc")) == ["a", "b", "c"]


def test_starting_the_loader_is_waiting_for_data() -> None:
    class Loader:
        def __iter__(self) -> Iterator[int]:
            tick(7)
            return iter([1])

    with fake_clock() as tick, pig.record() as recording:
        for _ in gpu_steps(Loader()):
            pass

    assert times_of(recording.run) == [("data", 0, 7)]


def test_empty_loader_makes_no_step() -> None:
    with pig.record() as recording:
        assert list(gpu_steps([])) == []

    run = recording.run
    assert len(run.steps) == run.step_totals.count == 0
    assert len(run.spans) == 0
    assert run.phases == {}


def test_two_epochs_are_numbered_without_a_gap() -> None:
    with fake_clock() as tick, pig.record() as recording:
        for _ in range(2):
            for _ in gpu_steps([1, 2]):
                tick(1)
            with gpu_phase("validate"):
                tick(10)

    run = recording.run
    assert step_times(run) == [(0, 0, 1), (1, 1, 2), (2, 12, 13), (3, 13, 14)]
    assert [(span.path, span.step) for span in spans_of(run)] == [
        ("data", 0),
        ("data", 1),
        ("validate", -1),
        ("data", 2),
        ("data", 3),
        ("validate", -1),
    ]


def test_one_object_serves_several_epochs() -> None:
    steps = gpu_steps([1, 2])
    with pig.record() as recording:
        assert [list(steps), list(steps)] == [[1, 2], [1, 2]]

    assert [step.index for step in recording.run.steps] == [0, 1, 2, 3]


def test_length_is_kept() -> None:
    assert len(gpu_steps([1, 2, 3])) == 3  # type: ignore[arg-type]
    assert len(gpu_steps([1, 2, 3], accumulate=2)) == 3  # type: ignore[arg-type]


def test_iterable_without_length_has_none() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(gpu_steps(iter([1, 2, 3])))  # type: ignore[arg-type]
    assert len(record_steps(iter([1, 2, 3]))) == 3


# --- accumulate ---


def test_accumulated_items_make_one_step() -> None:
    with fake_clock() as tick, pig.record() as recording:
        for _ in gpu_steps(slow_loader(tick, 4), accumulate=2):
            tick(10)

    run = recording.run
    assert list(run.steps) == [
        Step(0, 0, 220, None, 2, True, 0),
        Step(1, 220, 440, None, 2, True, 0),
    ]
    assert [(span.begin_ns, span.step) for span in spans_of(run)] == [
        (0, 0),
        (110, 0),
        (220, 1),
        (330, 1),
    ]


def test_loader_that_ends_within_a_step_leaves_it_incomplete() -> None:
    with fake_clock() as tick, pig.record() as recording:
        for _ in gpu_steps(slow_loader(tick, 3), accumulate=2):
            tick(10)

    run = recording.run
    assert [(step.items, step.complete) for step in run.steps] == [(2, True), (1, False)]
    # The vain wait belongs to the step, but is no wait for an item.
    assert step_times(run)[1] == (1, 220, 1330)
    assert times_of(run)[-1] == ("data", 220, 320)


# --- samples ---


def test_number_of_samples() -> None:
    assert [step.samples for step in record_steps([1, 2, 3], samples=64)] == [64, 64, 64]


def test_samples_of_accumulated_items_add_up() -> None:
    steps = record_steps([1, 2, 3], samples=64, accumulate=2)

    assert [step.samples for step in steps] == [128, 64]


@pytest.mark.parametrize("number", [int, float, np.int64, np.float32])
def test_samples_as_a_function_of_the_item(number: Callable[[int], float]) -> None:
    batches = [[1, 2, 3], [], [4]]
    steps = record_steps(batches, samples=lambda batch: number(len(batch)))

    assert [step.samples for step in steps] == [3, 0, 1]


def test_samples_are_unknown_unless_told() -> None:
    assert [step.samples for step in record_steps([1])] == [None]


def test_samples_of_a_run() -> None:
    with fake_clock() as tick, pig.record() as recording:
        for _ in gpu_steps([1, 2], samples=8):
            tick(10)
        with gpu_step():
            tick(1)

    totals = recording.run.step_totals
    assert (totals.count, totals.items, totals.sampled, totals.sampled_ns) == (3, 3, 2, 20)
    assert totals.samples == 16


def fails(item: object) -> float:
    raise RuntimeError("no length")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (fails, r"raised RuntimeError\('no length'\)"),
        (lambda item: "7", "returned str 7"),
        (lambda item: None, "returned NoneType None"),
        (lambda item: -1, "returned int -1"),
        (lambda item: math.nan, "returned float nan"),
        (lambda item: math.inf, "returned float inf"),
        (lambda item: np.array(3), "returned ndarray 3"),
    ],
)
def test_samples_function_that_fails_warns_once(
    samples: Callable[[object], float], message: str
) -> None:
    with pytest.warns(RuntimeWarning, match=message) as caught:
        steps = record_steps([1, 2], samples=samples)

    assert [step.samples for step in steps] == [None, None]
    assert [warning.filename for warning in caught] == [__file__]


def test_samples_function_that_returns_a_tensor_is_not_waited_for() -> None:
    torch = pytest.importorskip("torch")

    with pytest.warns(RuntimeWarning, match="returned Tensor"):
        steps = record_steps([1], samples=lambda item: torch.tensor(3))

    assert steps[0].samples is None


def test_step_in_which_the_samples_function_fails_has_unknown_samples() -> None:
    answers = iter([3])
    with pytest.warns(RuntimeWarning, match="raised StopIteration"):
        steps = record_steps([1, 2, 3, 4], accumulate=2, samples=lambda item: next(answers))

    assert [step.samples for step in steps] == [None, None]


def test_samples_function_is_not_the_loops_business() -> None:
    """What it raises ends nothing, be it what usually ends loops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pig.record() as recording:
            items = list(gpu_steps([1, 2], samples=lambda item: next(iter(()))))

    assert items == [1, 2]
    assert len(recording.run.steps) == 2


# --- loops that end early ---


def test_break_ends_the_step_incomplete() -> None:
    with fake_clock() as tick, pig.record() as recording:
        for i in gpu_steps([0, 1, 2]):
            tick(10)
            if i == 1:
                break
        tick(100)

    assert list(recording.run.steps) == [
        Step(0, 0, 10, None, 1, True, 0),
        Step(1, 10, 20, None, 1, False, 0),
    ]


def test_exception_in_the_loader_drops_the_step() -> None:
    error = OSError("disk")

    def loader() -> Iterator[int]:
        yield 1
        tick(1)
        raise error

    with fake_clock() as tick, pig.record() as recording:
        with pytest.raises(OSError) as caught:
            for _ in gpu_steps(loader()):
                tick(10)
        with gpu_step():
            tick(100)

    assert caught.value is error
    run = recording.run
    assert step_times(run) == [(0, 0, 10), (1, 11, 111)]
    # The wait that failed did happen: outside any step that there is.
    assert [(span.path, span.begin_ns, span.end_ns, span.step) for span in spans_of(run)] == [
        ("data", 0, 0, 0),
        ("data", 10, 11, -1),
    ]


def test_exception_when_the_loader_starts() -> None:
    class Loader:
        def __iter__(self) -> Iterator[int]:
            raise OSError("disk")

    with pig.record() as recording, pytest.raises(OSError, match="disk"):
        list(gpu_steps(Loader()))

    assert len(recording.run.steps) == 0
    assert recording.run.open_step is None


def test_iterator_left_alone_ends_its_step_when_it_goes() -> None:
    with fake_clock() as tick, pig.record() as recording:
        iterator = iter(gpu_steps([1, 2]))
        next(iterator)
        tick(1)
        del iterator
        tick(1)

    assert list(recording.run.steps) == [Step(0, 0, 1, None, 1, False, 0)]


# --- gpu_step ---


def test_context_manager() -> None:
    with fake_clock() as tick, pig.record() as recording:
        tick(5)
        with gpu_step(samples=32), gpu_phase("forward"):
            tick(10)
        tick(5)

    assert list(recording.run.steps) == [Step(0, 5, 15, 32.0, 1, True, 0)]
    assert spans_of(recording.run) == [Span("forward", 5, 15, 10, 0, 0, "MainThread", True)]


def test_exception_in_a_step_passes_through() -> None:
    error = ValueError("x")
    with fake_clock() as tick, pig.record() as recording:
        with pytest.raises(ValueError) as caught, gpu_step():
            tick(1)
            raise error
        tick(1)

    assert caught.value is error
    assert list(recording.run.steps) == [Step(0, 0, 1, None, 1, False, 0)]


def test_decorator() -> None:
    @gpu_step(samples=4)
    def train_step(x: int) -> int:
        tick(1)
        return x + 1

    with fake_clock() as tick, pig.record() as recording:
        assert [train_step(1), train_step(2)] == [2, 3]

    assert list(recording.run.steps) == [
        Step(0, 0, 1, 4.0, 1, True, 0),
        Step(1, 1, 2, 4.0, 1, True, 0),
    ]


def test_one_object_makes_a_step_each_time() -> None:
    step = gpu_step()
    with fake_clock() as tick, pig.record() as recording:
        for _ in range(2):
            with step:
                tick(1)

    assert step_times(recording.run) == [(0, 0, 1), (1, 1, 2)]


# --- arguments ---


@pytest.mark.parametrize("accumulate", [0, -1, 1.5, "2", None])
def test_accumulate_is_checked(accumulate: object) -> None:
    with pytest.raises(ValueError, match="accumulate must be an int of at least 1"):
        gpu_steps([1], accumulate=accumulate)  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", ["64", [1], b"x"])
def test_samples_of_a_wrong_type(samples: object) -> None:
    for make in (lambda: gpu_steps([1], samples=samples), lambda: gpu_step(samples=samples)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="samples must be a number"):
            make()


@pytest.mark.parametrize("samples", [-1, math.nan, math.inf])
def test_samples_out_of_range(samples: float) -> None:
    for make in (lambda: gpu_steps([1], samples=samples), lambda: gpu_step(samples=samples)):
        with pytest.raises(ValueError, match="samples must be a number >= 0"):
            make()


# --- nested steps ---


def test_step_inside_a_step_is_a_phase() -> None:
    with fake_clock() as tick, pig.record() as recording, gpu_step():
        tick(1)
        with gpu_step(), gpu_phase("inner"):
            tick(10)

    run = recording.run
    assert step_times(run) == [(0, 0, 11)]
    assert [(path, begin, end) for path, begin, end in times_of(run)] == [
        ("step/inner", 1, 11),
        ("step", 1, 11),
    ]
    assert dropped_of(run) == {"nested_steps": 1}


# --- to which step a span belongs ---


def test_spans_of_other_threads_belong_to_the_open_step() -> None:
    """A span belongs to the step open when it begins, on whatever thread."""
    has_begun, may_end = threading.Event(), threading.Event()

    def load() -> None:
        with gpu_phase("load"):
            has_begun.set()
            may_end.wait()
        with gpu_phase("between"):
            pass

    with fake_clock() as tick, pig.record() as recording:
        thread = threading.Thread(target=load, name="loader")
        with gpu_step():
            thread.start()
            has_begun.wait()
            tick(1)
        tick(1)
        may_end.set()
        thread.join()
        with gpu_step():
            pass

    run = recording.run
    assert spans_of(run) == [
        Span("load", 0, 2, 2, 0, 0, "loader", False),
        Span("between", 2, 2, 0, -1, 0, "loader", False),
    ]
    assert list(run.phases_in(Scope.OTHER_THREADS)) == ["load"]
    assert list(run.phases_in(Scope.OUTSIDE)) == ["between"]


def test_phase_that_began_before_the_step_is_outside() -> None:
    with fake_clock() as tick, pig.record() as recording, gpu_phase("epoch"):
        tick(1)
        with gpu_step(), gpu_phase("forward"):
            tick(1)

    assert [(span.path, span.step) for span in spans_of(recording.run)] == [
        ("epoch/forward", 0),
        ("epoch", -1),
    ]
    run = recording.run
    assert list(run.phases_in(Scope.STEP)) == ["epoch/forward"]
    assert list(run.phases_in(Scope.OUTSIDE)) == ["epoch"]


# --- the edges of a recording ---


def test_steps_do_nothing_while_nothing_is_recorded() -> None:
    with gpu_step():
        assert list(gpu_steps([1, 2])) == [1, 2]

    with pig.record() as recording:
        pass

    assert len(recording.run.steps) == 0
    assert dropped_of(recording.run) == {}


def test_recording_that_starts_inside_a_loop_begins_with_the_next_step() -> None:
    with fake_clock() as tick:
        for i in gpu_steps([0, 1, 2]):
            if i == 0:
                recording = pig.start()
            tick(1)
        run = recording.stop()

    assert step_times(run) == [(0, 1, 2), (1, 2, 3)]
    assert times_of(run) == [("data", 1, 1), ("data", 2, 2)]
    assert dropped_of(run) == {}


def test_recording_that_stops_inside_a_loop_ends_with_an_incomplete_step() -> None:
    runs = []
    with fake_clock() as tick:
        recording = pig.start()
        for i in gpu_steps([0, 1, 2], samples=8):
            tick(1)
            if i == 1:
                runs.append(recording.stop())

    assert list(runs[0].steps) == [
        Step(0, 0, 1, 8.0, 1, True, 0),
        Step(1, 1, 2, 8.0, 1, False, 0),
    ]
    assert runs[0].open_step is None


def test_step_across_two_recordings_is_in_the_first_only() -> None:
    with fake_clock() as tick:
        first = pig.start()
        with gpu_step():
            tick(1)
            first.stop()
            second = pig.start()
            with gpu_step():
                tick(10)
            with gpu_step():
                tick(100)
        second.stop()

    assert step_times(first.run) == [(0, 0, 1)]
    assert step_times(second.run) == [(0, 0, 10), (1, 10, 110)]
    assert dropped_of(second.run) == {}


def test_open_step_in_a_snapshot() -> None:
    with fake_clock() as tick, pig.record() as recording:
        tick(3)
        for _ in gpu_steps([0], samples=8):
            tick(10)
            snapshot = recording.snapshot()

    assert snapshot.open_step == Step(0, 3, -1, 8.0, 1, False, 0)
    assert list(snapshot.steps) == [snapshot.open_step]
    assert snapshot.step_totals.count == 0


def test_gpu_step_inside_itself() -> None:
    with pig.record() as recording:
        step = gpu_step()
        with step, step:
            pass
        with gpu_step():
            pass

    assert [one.complete for one in recording.run.steps] == [True, True]
    assert recording.run.phases["step"].count == 1


def test_what_is_no_iterable_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="needs an iterable, got int: 5"):
        gpu_steps(5)  # type: ignore[arg-type]
