# SPDX-License-Identifier: Apache-2.0
"""The input of the rules: a run, its analysis, and what several of them need of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis import Analysis
from pyinstrument_gpu.analysis.advice import Finding, subject
from pyinstrument_gpu.analysis.rules.occasions import OutermostPhases
from pyinstrument_gpu.analysis.savings import Change, ReplayedSaving, ReplayedSavings
from pyinstrument_gpu.analysis.time_budget import TimeBudgetEntry
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind

UNKNOWN = None, None, None, None
"""In place of a worth that can't be told."""
SHORT_STEP_NS = 10_000_000
"""In a step on a CPU that takes no longer, what comes once for each operator matters."""
READS = (
    *(SyncKind.ITEM, SyncKind.FLOAT, SyncKind.INT, SyncKind.BOOL, SyncKind.COMPLEX),
    *(SyncKind.TOLIST, SyncKind.NUMPY, SyncKind.CPU, SyncKind.TO_CPU),
    *(SyncKind.PRINT, SyncKind.FORMAT, SyncKind.COMPARE),
)
"""What brings a result to the host, and so waits for all work before it."""


class Worth(NamedTuple):
    """The interval of what a change would save per step.

    Attributes:
        of_ns: what that is a share of, per step too.
        of: that in words: "step", or "elapsed time", from the begin of the first step on, with all
            that lies outside of steps.
    """

    low_ns: float
    high_ns: float
    of_ns: float
    of: str = "step"


def guidance(
    advice: str,
    promised: str | None,
    low_ns: float | None,
    high_ns: float | None,
    of_ns: float | None,
    of: str | None,
    evidence: str,
    edit: str | None = None,
) -> Finding:
    """Return a piece of advice that guides give.

    Args:
        advice: what they say to do.
        promised: what they say it saves, as they write it.
        low_ns, high_ns, of_ns, of: its `Worth` here, or `UNKNOWN`.
        evidence: what in this run says so; where the worth can't be told, why not.
        edit: how to do it, where the advice does not say it all.
    """
    return Finding(
        "guide", advice, low_ns, high_ns, None, of_ns, of, promised, evidence, edit, None
    )


def worth_of(saving: ReplayedSaving, found: ReplayedSavings) -> Worth:
    """Return what the savings of the run say of a change."""
    return Worth(saving.low_ns, saving.high_ns, found.whole_ns(saving), saving.of)


@dataclass(frozen=True, eq=False)
class Case:
    """A run and its analysis. Steps, waits and times are those of the thread of the steps."""

    run: Run
    found: Analysis

    @property
    def steps(self) -> NDArray[np.void]:
        """The closed steps of which all spans are kept."""
        return self.found.host_timeline.steps

    @cached_property
    def step_ns(self) -> float:
        """The mean duration of the steps."""
        return float(durations_ns_of(self.steps).mean())

    @cached_property
    def has_device(self) -> bool:
        """True if there is a sign that the program used a device."""
        run = self.run
        is_priced = bool((run.syncs.events["duration_ns"] >= 0).any())
        return bool(run.streams or run.environment.get("gpus") or is_priced)

    @cached_property
    def timeline(self) -> OutermostPhases:
        waits, thread = self.found.host_timeline.waits, self.found.host_timeline.thread
        reads = waits[self.run.syncs.of_kinds(waits, READS)] if self.has_device else None
        return OutermostPhases(self.run, thread, self.steps, reads)

    def computing_ns(self, path: int) -> float:
        """The host's own time in a phase per step, without what it is known to be blocked; under
        CPU contention, by its share of a step that nothing disturbs."""
        if self.found.undisturbed is not None:
            return self.found.undisturbed.share(path) * self.step_ns
        mean = self._means.get(path)
        if mean is None:
            return 0.0
        return mean.time_ns if mean.computing_ns is None else mean.computing_ns

    @property
    def computing_by_path(self) -> dict[int, float]:
        """The same of each phase."""
        return {path: self.computing_ns(path) for path in self._means if path >= 0}

    @cached_property
    def all_computing_ns(self) -> float:
        """The time that the host computes in all phases and outside of them, per step."""
        return sum(map(self.computing_ns, self._means))

    @cached_property
    def _means(self) -> Mapping[int, TimeBudgetEntry]:
        return self.found.time_budget.means()[1]

    @cached_property
    def waits(self) -> NDArray[np.void]:
        """The waits inside the steps that are not meant (`SYNC_DTYPE`), by begin."""
        waits = self.all_waits
        return waits[np.isin(waits["step"], self.steps["index"])]

    @cached_property
    def all_waits(self) -> NDArray[np.void]:
        """The waits, with those outside of steps."""
        waits = self.found.host_timeline.waits
        return waits[~self.run.syncs.is_allowed(waits)]

    def line(self, site: int) -> str:
        """Return what waits at a site, and where: ".item() at train.py:31"."""
        found = self.run.syncs.sites[site]
        return f"{found.kind.label} at {self.run.name_of_line(found.program)}"

    def lines(self, sites: Collection[int]) -> str:
        """The lines of some sites, of which the first two are named."""
        named = [self.line(site) for site in list(sites)[:2]]
        more = len(sites) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")

    def first_called(self, names: Collection[str]) -> str | None:
        """Return which of these phases is called at which line first; None where that was not
        noted."""
        for path, name in enumerate(self.run.path_names):
            if self.run.names[name] in names and (line := self.run.line_of_phase(path)):
                return f"{self.run.names[name]}, first called at {line}"
        return None

    @property
    def collated_by(self) -> str:
        """The program's function that makes a batch of samples, behind ", by "; "" where there is
        none, or it was not seen."""
        call = self.run.setup_calls.only("loader")
        collate = None if call is None else call.collate
        if collate is None:
            return ""
        return f", by {collate.function} ({self.run.name_of_line(collate.place)})"

    def saving(
        self, change: Change, *, site: int = -1, path: int = -1, is_inside: bool = True
    ) -> ReplayedSaving | None:
        """Return what the run's savings say of a change, if anything."""
        wanted = (change, site, path, is_inside)
        for row in self.found.savings.rows:
            if (row.change, row.site, row.path, row.is_inside) == wanted:
                return row
        return None

    def is_listed(self, saving: ReplayedSaving) -> bool:
        """Return whether the report recommends the change, or names it as a doubt, anyway."""
        told = subject(self.run, saving), saving.low_ns, saving.high_ns
        listed = (*self.found.advice, *self.found.doubts)
        return any((one.about, one.low_ns, one.high_ns) == told for one in listed)
