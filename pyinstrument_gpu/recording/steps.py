# SPDX-License-Identifier: Apache-2.0
"""Steps: the iterations of the training loop."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from numbers import Real
from typing import Generic, TypeAlias, TypeGuard, TypeVar, cast

from pyinstrument_gpu.core.watcher import active
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import loader_use

_T = TypeVar("_T")

_UNKNOWN = math.nan
_Numbers: TypeAlias = float | tuple[float, float]
_OF_TOKENS = ("tokens", "tokens_without_padding")
"""The numbers of a step that `tokens` gives, which a report calls `step/tokens` and so on."""


class _OfItem(Generic[_T]):
    """A quantity of each item: a number, or what a function of the item returns. It is unknown
    after the first failure of that function.

    Args:
        stacklevel: of the loop, for the one who warns of it.
    """

    def __init__(
        self, name: str, how: _Numbers | Callable[[_T], _Numbers], stacklevel: int
    ) -> None:
        self._name = name
        self._how = how
        self._stacklevel = stacklevel

    def number(self, item: _T) -> float:
        how = self._how
        if not callable(how):
            return cast(float, how)
        try:
            found = how(item)
        except Exception as error:
            return self._fails(f"raised {error!r}")
        # A tensor may lie on a GPU: float() would wait for it.
        if not _is_amount(found):
            return self._fails(f"returned {type(found).__name__} {str(found)[:80]}")
        return float(found)

    def numbers(self, item: _T) -> tuple[float, ...]:
        """Return one or two numbers."""
        how = self._how
        if not callable(how):
            return _tuple_of(how)
        try:
            found = how(item)
        except Exception as error:
            return (self._fails(f"raised {error!r}"),)
        numbers = _tuple_of(found)
        if len(numbers) not in (1, 2) or not all(map(_is_amount, numbers)):
            return (self._fails(f"returned {type(found).__name__} {str(found)[:80]}"),)
        return numbers

    def _fails(self, what: str) -> float:
        self._how = _UNKNOWN
        warnings.warn(
            f"gpu_steps: the function `{self._name}` {what}; it should return a number >= 0. "
            f"From now on the number of {self._name} is unknown",
            RuntimeWarning,
            stacklevel=self._stacklevel,
        )
        return _UNKNOWN


class _Steps(Generic[_T]):
    def __init__(
        self,
        iterable: Iterable[_T],
        accumulate: int,
        samples: float | Callable[[_T], float] | None,
        tokens: _Numbers | Callable[[_T], _Numbers] | None,
        start: int | None,
    ) -> None:
        self._iterable = iterable
        self._start = start
        self._accumulate = accumulate
        has_tokens = tokens is not None
        self._samples = _OfItem("samples", _UNKNOWN if samples is None else samples, 3 + has_tokens)
        self._tokens = None if tokens is None else _OfItem("tokens", tokens, 4)
        self._is_asked = callable(samples)

    def __iter__(self) -> Iterator[_T]:
        how: float | Callable[[_T], float]
        try:
            recording = active()
            if recording is not None and self._start is not None:
                recording.note_step_number(self._start)
            if self._tokens is not None:
                how = self._of_item
            else:
                how = self._samples.number
                how = how if self._is_asked else how(cast(_T, None))
            drawn = loader_use.counter_of(self._iterable)
        except MemoryError:  # a loop without steps
            native.count_no_memory()
            return iter(self._iterable)
        looks = self._tokens is None
        return native.iterate_steps(self._iterable, self._accumulate, how, drawn, looks)

    def _of_item(self, item: _T) -> float:
        """Return the samples of an item. Its tokens are added to the step that is open."""
        if self._tokens is not None:
            for name, number in zip(_OF_TOKENS, self._tokens.numbers(item), strict=False):
                native.add_to_step(name, number)
        return self._samples.number(item)


class _SizedSteps(_Steps[_T]):
    def __len__(self) -> int:
        assert isinstance(self._iterable, Sized)
        return len(self._iterable)


def gpu_steps(
    iterable: Iterable[_T],
    accumulate: int = 1,
    samples: float | Callable[[_T], float] | None = None,
    tokens: _Numbers | Callable[[_T], _Numbers] | None = None,
    start: int | None = None,
) -> _Steps[_T]:
    """Iterate over a loader; each item, or each `accumulate` items, is one step.

    A step begins before the item is requested and ends when the loop requests the next one. Waiting
    for the item is the phase "data". When the loader has no further item, the step that has just
    begun is dropped. A step that is left by `break` or an exception, or that ends with fewer than
    `accumulate` items, is not `complete`.

    Steps belong to the process: spans of every thread belong to the step that is open when they
    begin. A step inside an open step becomes a phase named "step" (`Run.dropped["nested_steps"]`
    counts them).

    Args:
        iterable: a DataLoader or any other iterable. The result has a length if this has one.
        accumulate: items per step, for gradient accumulation.
        samples: samples per item, as a number or as a function of the item. It should look at
            shapes only, because reading a value from the GPU would make the loop wait. If it
            fails, there is one warning, and the number is unknown from then on.
        tokens: tokens per item, padding included, likewise; or a tuple of two numbers, with padding
            and without. By default they are known of batches that are a `dict` with `input_ids`
            and, for those without padding, an `attention_mask` on the CPU.
        start: how many steps the whole training has done before this loop, as a checkpoint says
            after a restart: the first step gets this number in `pyinstrument-gpu goodput`.

    Raises:
        ValueError, TypeError: an argument is invalid.

    A step that an exception has left open, because the loop's iterator is kept in a variable, is
    closed by the next step once the loop is certainly over. It is then not `complete`.

    Cost: less than a microsecond per item, and some two with `tokens`. Never synchronises.
    """
    if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
        raise TypeError(f"gpu_steps needs an iterable, got {type(iterable).__name__}: {iterable!r}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate must be an int of at least 1, got {accumulate!r}")
    if samples is not None and not callable(samples):
        _check_amount("samples", samples)
    if start is not None and (not isinstance(start, int) or start < 0):
        raise ValueError(f"start must be an int of at least 0, got {start!r}")
    if tokens is not None and not callable(tokens):
        for number in _tuple_of(tokens):
            _check_amount("tokens", number)
    try:
        kind = _SizedSteps if hasattr(iterable, "__len__") else _Steps
        return kind(iterable, accumulate, samples, tokens, start)
    except MemoryError:  # a loop without steps
        native.count_no_memory()
        return cast("_Steps[_T]", iterable)


class gpu_step(native.StepBlock, contextlib.ContextDecorator):
    """Make a block one step, for loops that do not iterate over a loader. As a decorator, it makes
    each call of the function a step.

    An exception inside ends the step, which is then not `complete`, and propagates.

    Args:
        samples: the number of samples in the step.

    Raises:
        ValueError, TypeError: `samples` is not a number >= 0.

    Cost: less than a microsecond. Never synchronises.
    """

    def __init__(self, samples: float | None = None) -> None:
        if samples is not None:
            _check_amount("samples", samples)
            self._samples = float(samples)

    def _recreate_cm(self) -> gpu_step:
        step = gpu_step()
        step._samples = self._samples
        return step


def _tuple_of(numbers: _Numbers) -> tuple[float, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _is_amount(number: object) -> TypeGuard[float]:
    return isinstance(number, Real) and 0 <= cast(float, number) < math.inf


def _check_amount(name: str, number: float) -> None:
    if not isinstance(number, Real):
        raise TypeError(f"{name} must be a number or a function of the item, got {number!r}")
    if not _is_amount(number):
        raise ValueError(f"{name} must be a number >= 0, got {number!r}")


def add_to_step(name: str, value: float) -> None:
    """Add to a number of the open step: `pig.add_to_step("tokens_dropped", 3)`.

    The sum over the step becomes the metric `step/NAME` of the run, with one value for each step in
    which it was called. Report, page, JSON, CSV, Parquet, sinks and `watch` show it. A run keeps
    at most 64 names; of a long run it keeps every second value, every fourth and so on.

    Any thread may call it. It takes tens of nanoseconds, and never waits for a GPU. Nothing is
    added while no step is open or no recording is active.

    Args:
        name: what is counted, or a name that ends with its unit, as in `"read_bytes"`.
        value: a number of Python or numpy. NaN says that the number is not known of this step,
            which then has none.

    Raises:
        TypeError: `name` is no str, or `value` is no number. A tensor is none: to read it could
            wait for the GPU. `MetricAccumulator` takes tensors.
    """
    if not isinstance(value, Real):
        raise TypeError(
            f"value must be a number, got {type(value).__name__}: "
            "MetricAccumulator takes tensors without waiting for them"
        )
    native.add_to_step(name, float(value))
