# SPDX-License-Identifier: Apache-2.0
"""Sinks, and the updates that say what is new in a recording while it is active."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.statistics import PhaseStatistics
from pyinstrument_gpu.core.steps import StepTotals


@dataclass(frozen=True)
class Totals:
    """Statistics of a whole run so far: of phases by path, over all scopes, and of closed steps."""

    phases: Mapping[str, PhaseStatistics]
    steps: StepTotals


@dataclass(frozen=True)
class RunUpdate:
    """The part of a run that is new since the last update.

    Attributes:
        environment: where the run is recorded; see `Run.environment`.
        began_realtime_ns: when the run began, by the wall clock.
        paths: the paths so far, in order of first appearance; see `Run.paths`.
        steps: the steps that closed (`STEP_DTYPE`), ascending by index. Each is in at most one
            update. A step that closed while too much arrived at once is in none.
        phase_times: how much time those steps spent in each path (`PHASE_TIME_DTYPE`), ascending by
            step and path. A step with missing spans has no rows, because too little time would
            make it look fast.
        metric_names: the names of the metrics so far; see `Run.metric_names`.
        metrics: the values of metrics that were read (`METRIC_DTYPE`), in the order in which they
            were read. Each is in one update, usually an earlier one than its step.
        metric_steps: for each of them the index of its step. If it has none, as after an epoch,
            the index of the last step that had ended, or -1 if none had.
        dropped: what has not been kept since the run began, counted by cause; see `Run.dropped`.
        phases_recorded: the number of spans that have ended since the run began, and of passes
            through modules that were missed by the sinks.
        final: whether this is the last update.
        path: the file that the run is written to; None if it is in memory.
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
    path: str | None = None

    @cached_property
    def totals(self) -> Totals | None:
        """Statistics of the whole run so far, as of about a second ago; None if there are none yet.

        They are decoded at the first access, which takes time proportional to the number of paths.
        """
        return self.decode_totals()


class Sink(ABC):
    """Receives what is new in a run at intervals: `recording.add_sink(sink)`.

    `write` and `close` are called on a thread of the recording's, never on a training thread. An
    exception there switches this sink off, with one warning; training and other sinks go on. A
    sink serves one recording.
    """

    def open(self) -> None:
        """Open the sink. Called by `add_sink`, which passes exceptions on to its caller."""
        return

    @abstractmethod
    def write(self, update: RunUpdate) -> None:
        """Process an update. The last update of a recording has `final` set."""

    def close(self) -> None:
        """Release what `open` acquired. Called once, after the last `write` or one that failed."""
        return


def steps_of_metrics(
    metrics: NDArray[np.void], indices: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`RunUpdate.metric_steps` of metrics, from the indices and ends of steps, both ascending."""
    last_ended = np.searchsorted(ends_ns, metrics["host_ns"], side="right") - 1
    before = np.append(indices, -1)[last_ended]  # -1 is the place behind the last
    return np.where(metrics["step"] < 0, before, metrics["step"])
