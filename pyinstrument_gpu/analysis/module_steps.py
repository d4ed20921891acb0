# SPDX-License-Identifier: Apache-2.0
"""What a step spends in the modules of the model.

Statistics of modules cover the whole run. Which of its passes were in steps, and not in a
validation between them for example, the history tells; where only a part of that was kept, this
part stands for the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import has_device_times
from pyinstrument_gpu.model.statistic import Statistic


@dataclass(frozen=True)
class PassPerStep:
    """The passes of one kind through a module, or through those of a group, per step.

    Attributes:
        count: their number.
        host_ns: their time on the CPU's clock.
        device_ns: their time on the stream; None where it is not known. Where it is known of some
            of them only, their mean stands for all.
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
        share: the share of the step's time that was spent in calls and backward passes; None where
            it is not known.
    """

    passes: Mapping[ModulePass, PassPerStep | None]
    share: float | None


def modules_per_step(run: RunData) -> dict[str, ModulePerStep]:
    """What the steps that ended spent in each row of `Run.modules`, per step; nothing if no step
    ended. Linear in the number of kept passes."""
    steps, total_ns = run.step_totals.count, run.step_totals.duration.total_ns
    if not steps:
        return {}
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
                passes[kind] = sums.per_step(rows, kind, host, device, steps)
        found[row] = ModulePerStep(passes, _share(passes, total_ns / steps))
    return found


def _share(passes: Mapping[ModulePass, PassPerStep | None], step_ns: float) -> float | None:
    spent_ns = 0.0
    for kind in (ModulePass.FORWARD, ModulePass.BACKWARD):
        if kind not in passes:
            continue
        one = passes[kind]
        if one is None:
            return None
        spent_ns += one.host_ns
    return spent_ns / step_ns if step_ns else None


@dataclass(frozen=True)
class _Sums:
    """Sums over the kept passes, by module and kind: of all, and of those in steps."""

    kept: NDArray[np.float64]
    inside: NDArray[np.float64]

    @classmethod
    def of(cls, run: RunData) -> _Sums:
        passes = run.module_spans
        key = passes["module"].astype(np.int64) * len(ModulePass) + passes["kind"]
        device_ns = passes["device_end_ns"] - passes["device_begin_ns"]
        timed = has_device_times(passes)
        columns = (
            np.ones(len(passes)),
            passes["host_end_ns"] - passes["host_begin_ns"],
            timed,
            np.where(timed, device_ns, 0),
        )

        def sums(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
            length = len(run.module_names) * len(ModulePass)
            counted = [np.bincount(key[chosen], column[chosen], length) for column in columns]
            return np.array(counted, np.float64).reshape(4, len(run.module_names), len(ModulePass))

        return cls(sums(np.ones(len(passes), np.bool_)), sums(passes["step"] >= 0))

    def per_step(
        self,
        rows: Sequence[int],
        kind: ModulePass,
        host: Statistic,
        device: Statistic | None,
        steps: int,
    ) -> PassPerStep | None:
        kept, inside = (sums[:, rows, kind].sum(axis=1) for sums in (self.kept, self.inside))
        if not kept[0]:
            return None
        of_count, of_host_ns, of_timed, of_device_ns = (
            part / whole if whole else inside[0] / kept[0]
            for part, whole in zip(inside.tolist(), kept.tolist(), strict=True)
        )
        count = host.count * of_count / steps
        timed = 0.0 if device is None else device.count * of_timed
        return PassPerStep(
            count=count,
            host_ns=host.total_ns * of_host_ns / steps,
            device_ns=device.total_ns * of_device_ns / timed * count if device and timed else None,
        )
