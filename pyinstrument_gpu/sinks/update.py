# SPDX-License-Identifier: Apache-2.0
"""What is new in a run: what sinks are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.statistics import PhaseStatistics
from pyinstrument_gpu.model.step_totals import StepTotals


@dataclass(frozen=True)
class Totals:
    """Statistics of a whole run so far.

    Attributes:
        phases: by path, over all scopes, in order of first appearance.
        steps: sums over the closed steps.
    """

    phases: Mapping[str, PhaseStatistics]
    steps: StepTotals


@dataclass(frozen=True)
class RunUpdate:
    """What is new in a run since the last update.

    Attributes:
        environment: where the run is recorded; see `Run.environment`.
        began_realtime_ns: when the run began, by the wall clock.
        paths: the paths so far, in order of first appearance; see `Run.paths`.
        steps: the steps that closed (`STEP_DTYPE`), ascending by index. Each is in one update at
            most: one that closed while too much came at once is in none.
        phase_times: what those steps spent in which path (`PHASE_TIME_DTYPE`), ascending by step
            and path. A step of which spans were missed has no rows: too little would look like a
            fast step.
        metric_names: the names of the metrics so far; see `Run.metric_names`.
        metrics: the values of metrics that were read (`METRIC_DTYPE`), in the order in which they
            were read. Each is in one update, mostly before its step is.
        metric_steps: for each of them the index of the step it is of; of one that is of none, as
            after an epoch, that of the last step that had ended; -1 before any had.
        dropped: what was not kept since the run began, counted by cause; see `Run.dropped`.
        phases_recorded: number of spans that ended since the run began.
        final: whether this is the last update.
    """

    environment: Mapping[str, Any]
    began_realtime_ns: int
    paths: Sequence[str]
    steps: NDArray[np.void]
    phase_times: NDArray[np.void]
    metric_names: Sequence[str]
    metrics: NDArray[np.void]
    metric_steps: NDArray[np.int64]
    dropped: Mapping[str, int]
    phases_recorded: int
    final: bool
    decode_totals: Callable[[], Totals | None] = field(repr=False)

    @cached_property
    def totals(self) -> Totals | None:
        """Statistics of the whole run so far, as of about a second ago; None before the first.

        Decoded at the first access, in time that grows with the number of paths.
        """
        return self.decode_totals()


def steps_of_metrics(
    metrics: NDArray[np.void], indices: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`RunUpdate.metric_steps` of metrics, from the indices and ends of steps, both ascending."""
    last_ended = np.searchsorted(ends_ns, metrics["host_ns"], side="right") - 1
    before = np.append(indices, -1)[last_ended]  # -1 is the place behind the last
    return np.where(metrics["step"] < 0, before, metrics["step"])
