# SPDX-License-Identifier: Apache-2.0
"""Views in `watch` of an aspect of a run that is being recorded, in the run and in its window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import places_in
from pyinstrument_gpu.core.file.framing import PAYLOAD_BYTES
from pyinstrument_gpu.core.file.items import SPAN_ITEM
from pyinstrument_gpu.core.steps import ProfiledSteps, Steps
from pyinstrument_gpu.parts.choice import Choice, Sorts
from pyinstrument_gpu.parts.parts import Part

WINDOW_NS = 30 * 10**9
_LEAST_STEPS = 3
SERIES = 24
"""At most so many values has a series: the means of steps that follow one another."""
_SPANS_OF_A_BLOCK = PAYLOAD_BYTES // SPAN_ITEM.itemsize


RunT = TypeVar("RunT")
"""A `Run`, which this file can't import: see core/aspect.py."""
SeenT = TypeVar("SeenT")


class RunInSteps(Protocol):
    """A `Run`, as far as a window is cut out of it."""

    spans: NDArray[np.void]
    steps: Steps
    duration_ns: int

    @property
    def profiled(self) -> ProfiledSteps: ...


@dataclass(frozen=True)
class LiveWindow:
    """The steps of the window, and the time that it takes.

    Attributes:
        steps: the steps (`STEP_DTYPE`).
        begin_ns, end_ns: of the window, also where it has no steps.
        series: of each step the place in a series.
        sizes: how many steps each place has.
    """

    steps: NDArray[np.void]
    begin_ns: int
    end_ns: int
    series: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, run: RunInSteps, is_whole: bool) -> LiveWindow:
        # Of steps that began before the oldest spans that are kept had ended, spans may be missing.
        oldest = run.spans["host_end_ns"][: 1 if is_whole else _SPANS_OF_A_BLOCK]
        known_from_ns = 0 if is_whole else int(oldest.max(initial=0))
        steps = run.steps.closed
        steps = steps[steps["begin_ns"] >= known_from_ns]
        steps = steps[~run.profiled.among(steps["index"])]
        end_ns = int(steps["end_ns"][-1]) if len(steps) else run.duration_ns
        recent = steps[steps["end_ns"] > end_ns - WINDOW_NS]
        recent = recent if len(recent) >= _LEAST_STEPS else steps[-_LEAST_STEPS:]
        if len(recent):
            begin_ns = int(recent["begin_ns"][0])
        else:
            begin_ns = max(known_from_ns, end_ns - WINDOW_NS)
        series = places_in_series(len(recent))
        return cls(recent, begin_ns, end_ns, series, np.bincount(series))

    @property
    def duration_ns(self) -> int:
        return max(0, self.end_ns - self.begin_ns)

    def per_second(self, count: float) -> float | None:
        return count / self.duration_ns * 1e9 if self.duration_ns else None

    def per_step(self, total_ns: float) -> float | None:
        return total_ns / len(self.steps) if len(self.steps) else None

    def places_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each step in the window; -1 if it is not in it."""
        return places_in(self.steps["index"], steps)

    def series_of(
        self, places: NDArray[np.int64], times_ns: NDArray[np.int64]
    ) -> tuple[float, ...]:
        """Time per step along the window."""
        sums = np.bincount(self.series[places], times_ns, len(self.sizes))
        return tuple((sums / self.sizes).tolist())


def places_in_series(count: int) -> NDArray[np.int64]:
    """Return the place in a series of each of so many values."""
    places: NDArray[np.int64] = np.arange(count) * min(SERIES, count) // max(1, count)
    return places


class LiveView(Generic[RunT, SeenT]):
    """The view of an aspect in `watch`. A subclass overrides what it has something to say to.

    Attributes:
        key: of what `look` returns, in `watch --json`.
        place: where that stands there, and the digit that chooses its table.
        tab: the name of its table; empty if it has none.
        sorts: by what its table can be sorted.
    """

    key: ClassVar[str]
    place: ClassVar[int]
    tab: ClassVar[str] = ""
    sorts: ClassVar[Sorts] = {}

    def look(self, run: RunT, window: LiveWindow) -> SeenT | None:
        """Return plain data, with times in nanoseconds and None for what is not known."""

    def parts(self, seen: SeenT, choice: Choice) -> list[Part]:
        """The table of what `look` returned."""
        return []

    def heading(self, seen: SeenT) -> tuple[str, str]:
        """Return some words for the lines above all tables, and a problem; empty if none."""
        return "", ""

    def line(self, seen: SeenT) -> str:
        """A line of its own above all tables; empty if there is none."""
        return ""

    def figure(self, seen: SeenT) -> str:
        """Return one figure to compare ranks by; empty if there is none."""
        return ""
