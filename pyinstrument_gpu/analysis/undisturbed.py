# SPDX-License-Identifier: Apache-2.0
"""The shares of a step on a machine that others keep busy, without what these took.

Contention does not fall on all parts of a step alike. A line of Python that waits for a processor
loses as much as another program was given. An operator that torch runs on several threads waits
until the last of them has had a processor: where others use all of them, it takes a hundred times
as long, and its thread computes meanwhile, as it waits actively. Neither the elapsed time nor the
processor time of such a run says which part of a step is long by itself.

Phases that are operators count with the fastest tenth of their executions, which is where nothing
disturbed them, for each place in a cycle of steps where their work has one. That is wrong where
their work varies otherwise, so nothing is said where the size of batches does. All else counts with
what is left of its mean without the share for which steps waited for a processor, or with its
fastest tenth if that is more. A wait for a loader's workers counts with what these need for a batch
by their own clocks, beyond the rest of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.time_budget import TimeBudgetEntries, are_data
from pyinstrument_gpu.core.arrays import groups
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.step_values import ELEMENTS, TOKENS, values_of_steps

OUTSIDE = -1
"""The path of what lies outside of phases."""
MIN_STEPS = 20
"""Fewer steps need not have any that nothing disturbs."""
LEAST_CONTENTION = 0.25
"""The share of the time for which steps have to wait: below it, the means say enough."""
_FASTEST = 0.1
_NOTABLE = 0.8
"""The same of a step that takes more than this share of its mean undisturbed."""
_OF_OPERATORS = ("forward", "loss", "backward", "zero_grad", "clip", "optimizer", "eval", "no_grad")
_LONGEST_CYCLE = 10
_LEAST_OF_CYCLE = 5
_APART = 2.0
"""So many times as long as the others' medians is each execution at a place in a cycle."""
_MOST_SPREAD = 1.5
"""From the tenth to the ninetieth percentile of the size of batches."""


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

    def share(self, path: int) -> float:
        """Return the share of the step that a path takes; of `OUTSIDE`, what no phase covers."""
        return self.by_path.get(path, 0.0) / self.step_ns


def undisturbed(run: Run, found: TimeBudgetEntries, waited: float) -> UndisturbedSteps | None:
    """Return these times; None where that can't be told, or the means say as much.

    Args:
        waited: the share of their time for which steps waited for a processor.
    """
    entries, steps = found.entries, len(found.steps)
    if steps < MIN_STEPS or waited < LEAST_CONTENTION or _have_sizes_that_differ(run, found.steps):
        return None
    is_data, by_path, data = are_data(run), {}, []
    for path, places in groups(entries["path"]):
        times_ns = np.zeros(steps)
        times_ns[np.searchsorted(found.steps["index"], entries["step"][places])] = entries[
            "host_ns"
        ][places]
        name = "" if path < 0 else run.names[run.path_names[path]].rstrip("0123456789 ")
        each_ns = _fastest_ns(times_ns)
        if path >= 0 and is_data[path] and run.program_facts.loader_workers:
            data.append(int(path))
        elif name not in _OF_OPERATORS:
            each_ns = max(each_ns, float(times_ns.mean()) * (1.0 - waited))
        by_path[int(path)] = each_ns
    if data:
        rest_ns = sum(time_ns for path, time_ns in by_path.items() if path not in data)
        by_path[data[0]] = max(by_path[data[0]], _batch_of_workers_ns(run) - rest_ns)
    known = UndisturbedSteps(by_path)
    mean_ns = float(entries["host_ns"].sum()) / steps
    return known if 0 < known.step_ns < _NOTABLE * mean_ns else None


def _fastest_ns(times_ns: NDArray[np.float64]) -> float:
    """Return the mean over a cycle of steps of the fastest tenth at each of its places. There is
    one where all executions at one place take far longer than the others do."""
    for size in range(2, min(_LONGEST_CYCLE, len(times_ns) // _LEAST_OF_CYCLE) + 1):
        at_places = [times_ns[place::size] for place in range(size)]
        medians_ns = [float(np.median(one)) for one in at_places]
        if float(at_places[int(np.argmax(medians_ns))].min()) > _APART * np.median(medians_ns):
            return sum(map(_tenth_ns, at_places)) / size
    present_ns = times_ns[times_ns > 0]
    return _tenth_ns(present_ns) * len(present_ns) / len(times_ns) if len(present_ns) else 0.0


def _tenth_ns(times_ns: NDArray[np.float64]) -> float:
    return float(np.quantile(times_ns, _FASTEST))


def _batch_of_workers_ns(run: Run) -> float:
    """Return the time from batch to batch in which workers that get their processors make one."""
    known: Any = run.loader
    for loader in () if known is None else known.loaders[:1]:
        each_ns: float = loader.needed_ns / max(1, loader.workers)
        return each_ns
    return 0.0


def _have_sizes_that_differ(run: Run, steps: NDArray[np.void]) -> bool:
    for name in (TOKENS, ELEMENTS):
        sizes = values_of_steps(run, name, steps)
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        if len(sizes) >= MIN_STEPS:
            low, high = np.quantile(sizes, (0.1, 0.9))
            return bool(high > _MOST_SPREAD * low)
    return False
