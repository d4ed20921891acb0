# SPDX-License-Identifier: Apache-2.0
"""Times of a step in the modules of the model.

Statistics of modules cover the whole run. Which passes were in steps, and not in a validation
between them for example, the history tells. It also tells how much of a backward pass was
recomputation: the pass of one module makes that of a whole block necessary, so that says nothing of
this module, and is taken out. Where only a part of the history was kept, this part stands for the
whole.

Modules may have been timed in some steps only, drawn by chance. Each of these stands for a known
number of steps. A mean over all steps is then that over those timed, with these numbers as weights
(Hájek's estimator, in Foundations of Statistical Inference, 1971). So are the times of steps of
which modules have a share. It rests on the history alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import covered_before, joined
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times


@dataclass(frozen=True)
class PassPerStep:
    """The passes of one kind through a module, or through those of a group, per step.

    Attributes:
        count: their number.
        host_ns: their time on the CPU's clock. That of backward passes is without recomputation.
        device_ns: the same on the stream; None where it is not known. Where it is known of some of
            them only, their mean stands for all.
    """

    count: float
    host_ns: float
    device_ns: float | None


NO_PASS = PassPerStep(0, 0, None)


@dataclass(frozen=True)
class ModulePerStep:
    """A module, or a group of them, per step.

    Attributes:
        passes: by kind; None where it is not known whether they were in steps. A kind that is not
            here never happened.
        share: the share of the step's time that was spent in all of them; None where it is not
            known.
    """

    passes: Mapping[ModulePass, PassPerStep | None]
    share: float | None


@dataclass(frozen=True)
class SampledSteps:
    """The steps in the history of which all passes are there, where modules were timed in some.

    Attributes:
        index: of each step, ascending.
        weights: for how many steps it stands, 0 where modules were not timed.
        total_ns: their time, each as often as it stands for steps.
    """

    index: NDArray[np.int64]
    weights: NDArray[np.int64]
    total_ns: int

    def of_passes(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for how many steps passes in these steps stand."""
        if not len(self.index):
            return np.zeros(len(steps), np.int64)
        place = np.minimum(np.searchsorted(self.index, steps), len(self.index) - 1)
        return np.where(self.index[place] == steps, self.weights[place], 0)


def sampled_steps(run: Run) -> SampledSteps | None:
    """Return the sampled steps; None if modules were timed in all steps."""
    if run.module_step_weights is None or not len(run.steps.closed):
        return None
    steps, weights, passes = run.steps.closed, run.module_step_weights, run.module_spans
    if run.modules.passes > len(passes):
        # The oldest are gone, and some of those in the first step that has any.
        in_steps = passes["step"][passes["step"] >= 0]
        is_whole = steps["index"] > (in_steps.min() if len(in_steps) else steps["index"].max())
        steps, weights = steps[is_whole], weights[is_whole]
    weights = np.where(were_profiled(run, steps["index"]), 0, weights)
    times_ns = durations_ns_of(steps)
    return SampledSteps(steps["index"], weights, int((weights * times_ns).sum()))


def modules_per_step(run: Run) -> dict[str, ModulePerStep]:
    """Return what the run spent in each row of `Run.modules` per step; if no step ended, what it
    spent there altogether. Sorts the kept recomputations."""
    steps, total_ns = run.step_totals.count, run.step_totals.duration.total_ns
    sampled = sampled_steps(run)
    if sampled is not None:
        steps, total_ns = int(sampled.weights.sum()), sampled.total_ns
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(run.module_names):
        numbers.setdefault(name, []).append(number)
    over = max(steps, 1) if sampled is None else steps
    sums = _Sums.of(run, sampled)
    found = {}
    for row, times in run.modules.items():
        rows = [number for name in run.modules.of_group(row) for number in numbers.get(name, ())]
        passes: dict[ModulePass, PassPerStep | None] = {}
        for kind in ModulePass:
            host, device = times.of_pass(kind)
            if host is None:
                continue
            timed = (0, 0) if device is None else (device.count, device.total_ns)
            whole = (host.count, host.total_ns, *timed) if sampled is None else None
            passes[kind] = sums.per_step(rows, kind, whole, over)
        spent_ns = sum(one.host_ns for one in passes.values() if one is not None)
        is_known = None not in passes.values() and steps and total_ns
        found[row] = ModulePerStep(passes, spent_ns * steps / total_ns if is_known else None)
    return found


@dataclass(frozen=True)
class _Sums:
    """Sums over the kept passes, by module and kind: their number, their time on the host, the
    number of those that were timed on the device, and this time.

    Attributes:
        kept: over all passes.
        wanted: over those in steps, or all if no step ended, without recomputation; each pass as
            often as its step stands for steps.
    """

    kept: NDArray[np.float64]
    wanted: NDArray[np.float64]

    @classmethod
    def of(cls, run: Run, sampled: SampledSteps | None) -> _Sums:
        passes = run.module_spans
        key = passes["module"].astype(np.int64) * len(ModulePass) + passes["kind"]
        shape = (len(run.module_names), len(ModulePass))

        def sums(columns: Iterable[NDArray[Any]], weights: NDArray[Any]) -> NDArray[np.float64]:
            counted = [np.bincount(key, weights * one, math.prod(shape)) for one in columns]
            return np.array(counted, np.float64).reshape(len(counted), *shape)

        counted = ~were_profiled(run, passes["step"])
        all_passes = np.ones(len(passes), np.bool_)
        weights: NDArray[Any] = counted
        if run.step_totals.count:
            weights = counted & (passes["step"] >= 0)
        if sampled is not None:
            weights = sampled.of_passes(passes["step"])
        host_ns = durations_ns_of(passes, "host_")
        timed = has_device_times(passes)
        device_ns = np.where(timed, durations_ns_of(passes, "device_"), 0)
        on_host = host_ns - _recomputation_ns(passes, all_passes, "host", "thread")
        on_device = device_ns - _recomputation_ns(passes, timed, "device", "stream")
        return cls(
            kept=sums((all_passes, host_ns, timed, device_ns), counted),
            wanted=sums((all_passes, on_host, timed, on_device), weights),
        )

    def per_step(
        self, rows: Sequence[int], kind: ModulePass, whole: Sequence[int] | None, steps: int
    ) -> PassPerStep | None:
        """Return the passes of some modules, over so many steps. None if none of them was kept.

        Args:
            whole: the same sums over all passes of the run, of which those that were kept tell the
                share that is wanted; None: what is wanted stands for all.
        """
        kept, found = (sums[:, rows, kind].sum(axis=1) for sums in (self.kept, self.wanted))
        if not kept[0] or not steps:
            return None
        if whole is not None:
            share = np.full(len(kept), found[0] / kept[0])
            found = np.array(whole, np.float64) * np.divide(found, kept, out=share, where=kept > 0)
        count, host_ns, timed, device_ns = found.tolist()
        return PassPerStep(
            count=count / steps,
            host_ns=host_ns / steps,
            device_ns=device_ns / timed * count / steps if timed else None,
        )


def _recomputation_ns(
    passes: NDArray[np.void], known: NDArray[np.bool_], clock: str, place: str
) -> NDArray[np.int64]:
    """Return how much of each backward pass was recomputation, by one clock, as far as times are
    known; both are at the same place, a thread or a stream."""
    begins_ns, ends_ns = passes[f"{clock}_begin_ns"], passes[f"{clock}_end_ns"]
    found_ns = np.zeros(len(passes), np.int64)
    is_again = known & (passes["kind"] == ModulePass.RECOMPUTE)
    for where in distinct(passes[place][is_again]):
        again = is_again & (passes[place] == where)
        of = known & (passes["kind"] == ModulePass.BACKWARD) & (passes[place] == where)
        intervals = joined(begins_ns[again], ends_ns[again])
        found_ns[of] = covered_before(*intervals, ends_ns[of])
        found_ns[of] -= covered_before(*intervals, begins_ns[of])
    return found_ns
