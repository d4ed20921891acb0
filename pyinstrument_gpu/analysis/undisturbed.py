# SPDX-License-Identifier: Apache-2.0
"""The times of a step on a machine that others keep busy, without what these took.

Contention does not fall on all parts of a step alike. A line of Python that waits for a processor
loses as much as another program was given. An operator that torch runs on several threads waits
until the last of them has had a processor: where others use all of them, it takes a hundred times
as long, and its thread computes meanwhile, as it waits actively. Neither the elapsed time nor the
processor time of such a run says which part of a step is long by itself. Executions that nothing
has disturbed do, and in most runs there are some: so each part counts with its fastest tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.analysis.time_budget import TimeBudgetEntries
from pyinstrument_gpu.core.arrays import distinct, groups

OUTSIDE = -1
"""The path of what lies outside of phases."""
MIN_STEPS = 20
"""Fewer steps need not have any that nothing disturbs."""
_FASTEST = 0.1
_NOTABLE = 0.8
"""Where a step takes more than this share of its mean undisturbed, the means say enough."""


@dataclass(frozen=True)
class UndisturbedSteps:
    """The times of a step where nothing disturbs it, per step.

    Attributes:
        by_path: of each path, an index into `Run.paths`, without the phases inside it.
    """

    by_path: Mapping[int, float]

    @property
    def step_ns(self) -> float:
        return sum(self.by_path.values())


def undisturbed(
    found: TimeBudgetEntries, waits_for_workers: frozenset[int]
) -> UndisturbedSteps | None:
    """Return these times; None where the steps are too few, or hardly longer than that.

    Args:
        waits_for_workers: paths that count as they are: a batch that is there at once says nothing
            of those that come late.
    """
    entries = found.entries
    steps = len(distinct(entries["step"]))
    if steps < MIN_STEPS:
        return None
    by_path: dict[int, float] = {}
    for path, places in groups(entries["path"]):
        times_ns = entries["host_ns"][places]
        each_ns = times_ns.mean() if path in waits_for_workers else np.quantile(times_ns, _FASTEST)
        by_path[int(path)] = float(each_ns) * len(times_ns) / steps
    known = UndisturbedSteps(by_path)
    mean_ns = float(entries["host_ns"].sum()) / steps
    return known if 0 < known.step_ns < _NOTABLE * mean_ns else None
