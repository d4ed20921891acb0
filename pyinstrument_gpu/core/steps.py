# SPDX-License-Identifier: Apache-2.0
"""The steps of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.schema import STEP_DTYPE


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        index: its number, counted from the start of the run.
        begin_ns: begin, in ns since the run began.
        end_ns: end; -1 when the step was still open.
        samples: number of samples; None when unknown.
        items: number of items taken from the loader.
        complete: whether the step ran to its end, not left by an exception or break.
        thread: the thread that opened the step, as an index into `Run.threads`.
    """

    index: int
    begin_ns: int
    end_ns: int
    samples: float | None
    items: int
    complete: bool
    thread: int

    @property
    def duration_ns(self) -> int | None:
        """End minus begin; None when the step was still open."""
        return None if self.end_ns < 0 else self.end_ns - self.begin_ns


class Steps(Sequence[Step]):
    """The steps of a run in order, as a sequence of `Step` over one numpy array.

    Attributes:
        array: the steps as columns (`STEP_DTYPE`), ascending by index.
    """

    def __init__(self, array: NDArray[np.void] | None = None) -> None:
        self.array = np.empty(0, STEP_DTYPE) if array is None else array

    @classmethod
    def with_open(cls, closed: NDArray[np.void], open_step: Step | None) -> Steps:
        """Closed steps as an array of `STEP_DTYPE`, and behind them the one that is open."""
        if open_step is None:
            return cls(closed)
        # Where its samples are None, numpy makes NaN of it.
        return cls(np.append(closed, np.array([astuple(open_step)], dtype=STEP_DTYPE)))

    @property
    def closed(self) -> NDArray[np.void]:
        """The part of `array` without a step that was still open."""
        return self.array[self.array["end_ns"] >= 0]

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, position: int) -> Step: ...
    @overload
    def __getitem__(self, position: slice) -> Steps: ...
    def __getitem__(self, position: int | slice) -> Step | Steps:
        if isinstance(position, slice):
            return Steps(self.array[position])
        index, begin_ns, end_ns, samples, items, complete, thread = self.array[position].item()
        known_samples = None if math.isnan(samples) else samples
        return Step(index, begin_ns, end_ns, known_samples, items, complete, thread)

    def __iter__(self) -> Iterator[Step]:
        return (self[position] for position in range(len(self)))

    def by_index(self, index: int) -> Step:
        """The step with this index. Its position differs where the oldest steps were dropped.

        Raises:
            KeyError: there is no such step; the message names the range there is.
        """
        position = int(np.searchsorted(self.array["index"], index))
        if position < len(self) and self.array["index"][position] == index:
            return self[position]
        if not len(self):
            raise KeyError(f"no step {index}: the run holds no steps")
        first, last = self.array["index"][[0, -1]]
        raise KeyError(f"no step {index}: the run holds steps {first} to {last}")

    def __repr__(self) -> str:
        return f"<{len(self)} steps>"
