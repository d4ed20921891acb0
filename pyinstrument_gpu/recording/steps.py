# SPDX-License-Identifier: Apache-2.0
"""Steps: the iterations of the training loop."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from numbers import Real
from typing import Generic, TypeVar, cast

from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import loader_use

_T = TypeVar("_T")

_UNKNOWN = math.nan


class _Steps(Generic[_T]):
    def __init__(
        self,
        iterable: Iterable[_T],
        accumulate: int,
        samples: float | Callable[[_T], float] | None,
    ) -> None:
        self._iterable = iterable
        self._accumulate = accumulate
        self._samples = samples

    def __iter__(self) -> Iterator[_T]:
        samples = self._samples
        try:
            how = (
                self._samples_of if callable(samples) else _UNKNOWN if samples is None else samples
            )
            drawn = loader_use.counter_of(self._iterable)
        except MemoryError:  # a loop without steps
            native.count_no_memory()
            return iter(self._iterable)
        return native.iterate_steps(self._iterable, self._accumulate, how, drawn)

    def _samples_of(self, item: _T) -> float:
        if not callable(self._samples):
            return _UNKNOWN  # it has failed
        try:
            samples = self._samples(item)
        except Exception as error:
            return self._samples_failed(f"raised {error!r}")
        # A tensor may lie on a GPU: float() would wait for it.
        if not isinstance(samples, Real) or not 0 <= samples < math.inf:
            return self._samples_failed(f"returned {type(samples).__name__} {str(samples)[:80]}")
        return float(samples)

    def _samples_failed(self, what: str) -> float:
        self._samples = None
        warnings.warn(
            f"gpu_steps: the function `samples` {what}; it should return a number >= 0. "
            "From now on the number of samples is unknown",
            RuntimeWarning,
            stacklevel=3,
        )
        return _UNKNOWN


class _SizedSteps(_Steps[_T]):
    def __len__(self) -> int:
        assert isinstance(self._iterable, Sized)
        return len(self._iterable)


def gpu_steps(
    iterable: Iterable[_T],
    accumulate: int = 1,
    samples: float | Callable[[_T], float] | None = None,
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

    Raises:
        ValueError, TypeError: an argument is invalid.

    A step that an exception has left open, because the loop's iterator is kept in a variable, is
    closed by the next step once the loop is certainly over. It is then not `complete`.

    Cost: less than a microsecond per item. Never synchronises.
    """
    if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
        raise TypeError(f"gpu_steps needs an iterable, got {type(iterable).__name__}: {iterable!r}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate must be an int of at least 1, got {accumulate!r}")
    if samples is not None and not callable(samples):
        _check_samples(samples)
    try:
        kind = _SizedSteps if hasattr(iterable, "__len__") else _Steps
        return kind(iterable, accumulate, samples)
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
            _check_samples(samples)
            self._samples = float(samples)

    def _recreate_cm(self) -> gpu_step:
        step = gpu_step()
        step._samples = self._samples
        return step


def _check_samples(samples: float) -> None:
    if not isinstance(samples, Real):
        raise TypeError(f"samples must be a number or a function of the item, got {samples!r}")
    if not 0 <= samples < math.inf:
        raise ValueError(f"samples must be a number >= 0, got {samples!r}")
