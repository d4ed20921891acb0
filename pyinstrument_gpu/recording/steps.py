# SPDX-License-Identifier: Apache-2.0
"""Steps: the iterations of the training loop."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from numbers import Real
from typing import Generic, TypeVar

from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import loader_use

_T = TypeVar("_T")

_UNKNOWN = math.nan
_STEP_IS_OPEN = -1

before_step: Callable[[], None] | None = None
"""Called before a step is opened here; for `auto_phases`, which then opens none itself."""

_data = native.gpu_phase("data")
_step = native.gpu_phase("step")


class _OpenStep:
    """A step from its begin to its end; inside an open step it is a phase "step" instead."""

    __slots__ = ("_frame", "_token")

    def __init__(self) -> None:
        if before_step is not None:
            before_step()
        self._token = native.step_begin()
        self._frame = native.frame_begin(_step) if self._token == _STEP_IS_OPEN else None

    def add_item(self, samples: float) -> None:
        if self._token > 0:
            native.step_item(self._token, samples)

    def end(self, complete: bool) -> None:
        if self._frame is not None:
            native.frame_end(_step, self._frame)
        native.step_end(self._token, complete)

    def drop(self) -> None:
        if self._frame is not None:
            native.frame_cancel(_step, self._frame)
        else:
            native.step_drop(self._token)


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
        iterator: Iterator[_T] | None = None
        drawn = loader_use.counter_of(self._iterable)
        step: _OpenStep | None = None
        items = 0
        try:
            while True:
                if step is None:
                    step = _OpenStep()
                frame, was_timing_data = native.frame_begin(_data), False
                try:
                    was_timing_data = native.set_timing_data(True)
                    # Starting the loader's workers is waiting for the first item.
                    iterator = iter(self._iterable) if iterator is None else iterator
                    item = next(iterator)
                except StopIteration:
                    native.frame_cancel(_data, frame)
                    return
                except BaseException:
                    native.frame_end(_data, frame)
                    raise
                finally:
                    native.set_timing_data(was_timing_data)
                native.frame_end(_data, frame)
                step.add_item(self._samples_of(item))
                if step._token > 0:
                    drawn[0] += 1
                items += 1
                yield item
                if items == self._accumulate:
                    step.end(complete=True)
                    step = None
                    items = 0
        finally:
            if step is not None:
                if items:
                    step.end(complete=False)
                else:
                    step.drop()

    def _samples_of(self, item: _T) -> float:
        if not callable(self._samples):
            return _UNKNOWN if self._samples is None else float(self._samples)
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
            stacklevel=4,
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

    Cost: about a microsecond per item. Never synchronises.
    """
    if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
        raise TypeError(f"gpu_steps needs an iterable, got {type(iterable).__name__}: {iterable!r}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate must be an int of at least 1, got {accumulate!r}")
    if samples is not None and not callable(samples):
        _check_samples(samples)
    kind = _SizedSteps if hasattr(iterable, "__len__") else _Steps
    return kind(iterable, accumulate, samples)


class gpu_step(contextlib.ContextDecorator):
    """Make a block one step, for loops that do not iterate over a loader. As a decorator, it makes
    each call of the function a step.

    An exception inside ends the step, which is then not `complete`, and propagates.

    Args:
        samples: the number of samples in the step.

    Raises:
        ValueError, TypeError: `samples` is not a number >= 0.

    Cost: about a microsecond. Never synchronises.
    """

    def __init__(self, samples: float | None = None) -> None:
        if samples is not None:
            _check_samples(samples)
        self._samples = _UNKNOWN if samples is None else float(samples)
        self._open: list[_OpenStep] = []  # more than one when it is entered inside itself

    def _recreate_cm(self) -> gpu_step:
        step = gpu_step()
        step._samples = self._samples
        return step

    def __enter__(self) -> gpu_step:
        step = _OpenStep()
        step.add_item(self._samples)
        self._open.append(step)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if self._open:
            self._open.pop().end(complete=exc_type is None)


def _check_samples(samples: float) -> None:
    if not isinstance(samples, Real):
        raise TypeError(f"samples must be a number or a function of the item, got {samples!r}")
    if not 0 <= samples < math.inf:
        raise ValueError(f"samples must be a number >= 0, got {samples!r}")
