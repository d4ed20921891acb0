# SPDX-License-Identifier: Apache-2.0
"""What a step spends in the modules of the model.

Statistics of modules cover the whole run. Which passes were in steps, and not in a validation
between them for example, the history tells. It also tells how much of a backward pass was
recomputation: the pass of one module makes that of a whole block necessary, so that says nothing of
this module, and is taken out. Where only a part of the history was kept, this part stands for the
whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import covered_before, joined
from pyinstrument_gpu.model.distinct import distinct
from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import has_device_times
from pyinstrument_gpu.model.statistic import Statistic


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


def modules_per_step(run: RunData) -> dict[str, ModulePerStep]:
    """What the run spent in each row of `Run.modules` per step; if no step ended, what it spent
    there altogether. Sorts the kept recomputations."""
    steps, total_ns = run.step_totals.count, run.step_totals.duration.total_ns
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(run.module_names):
        numbers.setdefault(name, []).append(number)
    sums = _Sums.of(run)
    found = {}
    for row, times in run.modules.items():
        rows = [number for name in run.modules.of_group(row) for number in numbers.get(name, ())]
        passes: dict[ModulePass, PassPerStep | None] = {}
        for kind in ModulePass:
            host, device = times.of_pass(kind)
            if host is not None:
                passes[kind] = sums.per_step(rows, kind, host, device, max(steps, 1))
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
        wanted: over those in steps, or all if no step ended, without recomputation.
    """

    kept: NDArray[np.float64]
    wanted: NDArray[np.float64]

    @classmethod
    def of(cls, run: RunData) -> _Sums:
        passes = run.module_spans
        key = passes["module"].astype(np.int64) * len(ModulePass) + passes["kind"]
        shape = (len(run.module_names), len(ModulePass))

        def sums(columns: Iterable[NDArray[Any]], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
            counted = [np.bincount(key[chosen], one[chosen], math.prod(shape)) for one in columns]
            return np.array(counted, np.float64).reshape(-1, *shape)

        all_passes = np.ones(len(passes), np.bool_)
        host_ns = passes["host_end_ns"] - passes["host_begin_ns"]
        timed = has_device_times(passes)
        device_ns = np.where(timed, passes["device_end_ns"] - passes["device_begin_ns"], 0)
        on_host = host_ns - _recomputation_ns(passes, all_passes, "host", "thread")
        on_device = device_ns - _recomputation_ns(passes, timed, "device", "stream")
        return cls(
            kept=sums((all_passes, host_ns, timed, device_ns), all_passes),
            wanted=sums(
                (all_passes, on_host, timed, on_device),
                passes["step"] >= 0 if run.step_totals.count else all_passes,
            ),
        )

    def per_step(
        self,
        rows: Sequence[int],
        kind: ModulePass,
        host: Statistic,
        device: Statistic | None,
        steps: int,
    ) -> PassPerStep | None:
        kept, wanted = (sums[:, rows, kind].sum(axis=1) for sums in (self.kept, self.wanted))
        if not kept[0]:
            return None
        of_count, of_host_ns, of_timed, of_device_ns = (
            part / whole if whole else wanted[0] / kept[0]
            for part, whole in zip(wanted.tolist(), kept.tolist(), strict=True)
        )
        count = host.count * of_count / steps
        timed = 0.0 if device is None else device.count * of_timed
        return PassPerStep(
            count=count,
            host_ns=host.total_ns * of_host_ns / steps,
            device_ns=device.total_ns * of_device_ns / timed * count if device and timed else None,
        )


def _recomputation_ns(
    passes: NDArray[np.void], known: NDArray[np.bool_], clock: str, place: str
) -> NDArray[np.int64]:
    """How much of each backward pass was recomputation, by one clock, as far as times are known;
    both are at the same place, a thread or a stream."""
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
