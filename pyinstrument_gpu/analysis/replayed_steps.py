# SPDX-License-Identifier: Apache-2.0
"""The steps that are played again, one behind the other: those that were timed on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import CorrelationPoints
from pyinstrument_gpu.analysis.intervals import covered_before, joined
from pyinstrument_gpu.analysis.ledger import are_timed
from pyinstrument_gpu.analysis.replay import Segments, replay
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class ReplayedSteps:
    """Some of the steps of a run, on an axis of their own on which nothing lies between them.

    Attributes:
        steps: all steps, as rows of `Run.steps.array`.
        are_replayed: which of them are played again: all, if none was timed.
        windows_ns: the times that are played again, as begins and ends on the run's axis. Each
            reaches to the begin of the next step: what lies between steps is part of how far the
            host gets ahead. Of windows in succession nothing is cut out.
        points: the correlation points in them.
        first_points: of each step that is played again, the first point in it.
    """

    steps: NDArray[np.void]
    are_replayed: NDArray[np.bool_]
    windows_ns: tuple[NDArray[np.int64], NDArray[np.int64]]
    points: CorrelationPoints
    first_points: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.first_points)

    def on_axis(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the run on the axis of the windows, those between two at the cut."""
        return covered_before(*self.windows_ns, times_ns)

    def done_ns(
        self,
        points: CorrelationPoints,
        segments: Segments,
        taken_out: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """When host and device are done with each step, played without the syncs `taken_out`: at
        the first point of the next, and after all points."""
        done_ns = replay(points, segments, taken_out).done_ns
        last = np.minimum(self.first_points[1:], len(done_ns) - 1)
        return np.append(done_ns[last], done_ns[-1])


def replayed_steps(run: Run, points: CorrelationPoints, steps: NDArray[np.void]) -> ReplayedSteps:
    are_replayed = are_timed(run, points, steps)
    if not are_replayed.any():
        are_replayed[:] = True
    begins_ns = steps["begin_ns"][are_replayed]
    ends_ns = np.append(steps["begin_ns"][1:], steps["end_ns"][-1])[are_replayed]
    windows_ns = joined(begins_ns, ends_ns)
    chained = points.chained(*windows_ns)
    first_points = np.searchsorted(chained.host_ns, covered_before(*windows_ns, begins_ns))
    return ReplayedSteps(steps, are_replayed, windows_ns, chained, first_points)
