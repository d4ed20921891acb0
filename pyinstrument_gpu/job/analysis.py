# SPDX-License-Identifier: Apache-2.0
"""The analysis of the ranks of one job together: pure functions of a `Job`.

`of(job)` gives the results, each computed once, when it is asked for.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job import collectives, late_start, own_work, phases, pipeline, stragglers
from pyinstrument_gpu.job.findings import (
    CollectiveUse,
    LateStart,
    PhaseAcrossRanks,
    Pipeline,
    Stragglers,
)
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.job.joined import Joined, MatchedGroup, joined, matched
from pyinstrument_gpu.job.own_work import HowKnown, OwnWork
from pyinstrument_gpu.job.slow_lines import with_line

_analyses: MutableMapping[Job, JobAnalysis] = WeakKeyDictionary()


def of(job: Job) -> JobAnalysis:
    """The analysis of a job. All that read it share its parts, as long as the job exists.

    The job must not change once a part of its analysis has been computed.
    """
    found = _analyses.get(job)
    if found is None:
        found = _analyses[job] = JobAnalysis(joined(job))
    return found


class JobAnalysis:
    """The results that follow from the runs of a job's ranks. `of` makes it.

    Attributes:
        joined: the steps that the ranks have in common.
    """

    # It holds no reference to the job, so that it goes when that goes.

    def __init__(self, joined: Joined) -> None:
        self.joined = joined

    @cached_property
    def _groups(self) -> list[MatchedGroup]:
        return matched(self.joined.ranks)

    @cached_property
    def _work(self) -> OwnWork | str:
        return own_work.own_work(self.joined, self._groups)

    @cached_property
    def stragglers(self) -> Stragglers:
        """The ranks that are waited for."""
        found = stragglers.stragglers(self.joined, self._work)
        return replace(
            found,
            straggler=with_line(self.joined, found.straggler),
            hint=with_line(self.joined, found.hint),
        )

    @property
    def work_of_steps(self) -> tuple[NDArray[np.int64], NDArray[np.float64]] | str:
        """Indices of steps, and by rank and step what each of `joined.ranks` works until it waits
        for the others, in ns; here it is work, too, to wait for a processor. Or why that is not
        known."""
        work = self._work
        if isinstance(work, str):
            return work
        if work.how == HowKnown.MEETINGS and stragglers.on_devices(self.joined):
            return stragglers.DEVICES
        total_ns = work.total_ns + (0.0 if work.processor_ns is None else work.processor_ns)
        return self.joined.steps[work.steps], total_ns

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The waits of ranks for sends and receives; None if hardly any, or if unknown."""
        return pipeline.pipeline(self.joined, self._work, self.stragglers)

    @cached_property
    def late_start(self) -> LateStart | None:
        """The rank for which the others waited at the start; None if none or unknown."""
        return late_start.late_start(self.joined, self._groups, self._work)

    @cached_property
    def step(self) -> PhaseAcrossRanks | None:
        """Whole steps over the ranks, with the time before them; None if no step is common."""
        return phases.whole_step(self.joined, self._work, self.stragglers)

    @cached_property
    def phases(self) -> tuple[PhaseAcrossRanks, ...]:
        """The phases over the ranks, in the order of their appearance."""
        return phases.phases(self.joined, self._work, self.stragglers)

    @cached_property
    def collectives(self) -> tuple[CollectiveUse, ...]:
        """The collective operations by process group, operation and phase, the longest first."""
        return collectives.collectives(self.joined, self._groups, self._work)
