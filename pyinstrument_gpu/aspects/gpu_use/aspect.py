# SPDX-License-Identifier: Apache-2.0
"""The aspect of a GPU's use: what its units did, and its clock, which is also a cause of slow
steps.

Utilization as `nvidia-smi` has it is not among it: that says only whether any kernel ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.gpu_use import NAME
from pyinstrument_gpu.aspects.gpu_use.data import GpuReadings, gpu_readings
from pyinstrument_gpu.core import gpu_readings as names
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence, amounts_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Curves, Part, Row, Sentence, Table, curve_data
from pyinstrument_gpu.parts.words import UNKNOWN, counted, duration, small_percent

_NEAR_NS = 1_500_000_000
"""So long before and after a reading it says something of the clock."""
_LEAST_SHARE = 0.01
"""For a smaller share of the time a lower clock is not worth a word in the short report."""
_MOST_POINTS = 600
_WHY = {
    names.BY_POWER: "the power cap",
    names.BY_HEAT: "heat",
    names.BY_HARDWARE: "the GPU's hardware",
}
_CURVES = {
    "units in use": (
        "%",
        {
            "SMs": names.SM_ACTIVE,
            "tensor cores": names.TENSOR_ACTIVE,
            "memory bandwidth": names.DRAM_ACTIVE,
        },
    ),
    "clock": ("MHz", {"SMs": names.SM_CLOCK}),
    "power": ("W", {"power": names.POWER, "power cap": names.POWER_LIMIT}),
    "temperature": ("°C", {"temperature": names.TEMPERATURE}),
}


@dataclass(frozen=True)
class LoweredClock:
    """A reason for which the clock was lowered while steps ran.

    Attributes:
        reason: the power cap, heat, or the GPU's hardware.
        share: of the time of steps.
        sm_clock_mhz: of the multiprocessors in that time.
    """

    reason: str
    share: float
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class GpuUse:
    """The use of the whole GPU, by any process, as means over the time of steps. None is unknown.

    Attributes:
        device: number of the device in the process.
        readings: how many there are.
        seconds: of steps that they stand for.
        sm_active, tensor_active: the shares of the multiprocessors, and of the time of their tensor
            cores, that had work.
        dram_active: the share of the greatest bandwidth of memory that was used.
        sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz: clocks, and what the GPU can at most.
        power_w, power_limit_w: power, and its cap.
        temperature_c, temperature_max_c: of the chip; the maximum is of all readings.
        lowered: why the clock was lowered, the reason with the largest share first.
    """

    device: int
    readings: int
    seconds: float
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    sm_clock_mhz: float | None
    sm_clock_max_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    temperature_max_c: float | None
    lowered: tuple[LoweredClock, ...]


class GpuUseAspect(Aspect[Run, tuple[GpuUse, ...]]):
    """The use of GPUs."""

    name = NAME
    heading = "GPU use"
    section_type = tuple[GpuUse, ...]
    about = "what the units of GPUs did, their clocks, power and temperatures."

    def section(self, run: Run) -> tuple[GpuUse, ...]:
        uses = (_use(gpu) for gpu in gpu_readings(run))
        return tuple(use for use in uses if use.seconds)

    def summary(self, gpus: tuple[GpuUse, ...], document: ReportedRun) -> Iterable[Part]:
        for gpu in gpus:
            texts = [
                f"{what} {small_percent(share, 1)}"
                for what, share in (
                    ("SMs", gpu.sm_active),
                    ("tensor cores", gpu.tensor_active),
                    ("memory bandwidth", gpu.dram_active),
                )
                if share is not None
            ]
            facts = [f"{', '.join(texts)} in use while steps ran"] if texts else []
            facts += [_lowered(gpu, one) for one in gpu.lowered[:1] if one.share >= _LEAST_SHARE]
            if facts:
                yield Sentence(f"GPU {gpu.device}: {'; '.join(facts)}")

    def parts(self, gpus: tuple[GpuUse, ...], document: ReportedRun) -> Iterator[Part]:
        for gpu in gpus:
            yield Sentence()
            yield Sentence(
                f"Use of GPU {gpu.device} while steps ran: {counted(gpu.readings, 'reading')}, for "
                f"{duration(gpu.seconds * 1e9)} of steps",
                "title",
            )
            hottest = gpu.temperature_max_c
            rows = [
                Row("SMs in use", [_percent(gpu.sm_active), ""]),
                Row("tensor cores in use", [_percent(gpu.tensor_active), ""]),
                Row("memory bandwidth in use", [_percent(gpu.dram_active), ""]),
                Row("clock of SMs", _cells("MHz", gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)),
                Row("clock of memory", _cells("MHz", gpu.memory_clock_mhz)),
                Row("power", _cells("W", gpu.power_w, gpu.power_limit_w)),
                Row("temperature", _cells("°C", gpu.temperature_c)),
            ]
            yield Table(["", "mean", "limit"], [rows])
            for one in gpu.lowered:
                yield Sentence(f"Lowered clock: {_lowered(gpu, one)}", "warn")
            of_heat = "" if hottest is None else f" The temperature was {hottest:.0f} °C at most."
            yield Sentence(f"This is the use of the whole GPU, by any process.{of_heat}", "note")

    def curves(self, run: Run) -> Iterator[Curves]:
        for gpu in gpu_readings(run):
            for title, (unit, quantities) in _CURVES.items():
                known = {name: gpu.of(each) for name, each in quantities.items()}
                known = {name: of for name, of in known.items() if not np.isnan(of).all()}
                steps, values = _over_steps(run, gpu.time_ns, known)
                if known and len(steps):
                    data = curve_data("step", unit, steps, values)
                    yield Curves(f"GPU {gpu.device}: {title}", data)

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield lower clocks: one makes a step longer by that much at most, if all of it is the
        GPU's work. Of the reasons that have lowered it the most frequent is named."""
        for gpu in gpu_readings(run):
            is_known = ~np.isnan(gpu.of(names.SM_CLOCK)) & ~np.isnan(gpu.of(names.BY_POWER))
            if np.count_nonzero(is_known) < 2:
                continue
            amounts, why = _lost(run, gpu, is_known)
            yield Cause(
                name="gpu_clock",
                words=f"a lower clock of the GPU, by {why}" if why else "a lower clock of the GPU",
                remedy="look at `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE`; raise the power "
                "cap, or cool it better",
                precedence=Precedence.HINDRANCE,
                amounts=amounts,
                known=amounts["step"],
            )

    def unknown(self, run: Run) -> Iterator[str]:
        gpus = self.section(run)
        if run.device_timing is not None and not gpus:
            yield "Use of GPUs: NVML was not read while steps ran."
        for gpu in gpus:
            if gpu.sm_active is None:
                yield (
                    f"Use of the units of GPU {gpu.device}: NVML measures it on Hopper and newer, "
                    "with driver 525 or newer, for users who may read it, and here not for "
                    "parts of a GPU (MIG)."
                )


def _use(gpu: GpuReadings) -> GpuUse:
    def share(quantity: str) -> float | None:
        percent = gpu.mean(quantity)
        return None if percent is None else percent / 100

    lowered = [
        LoweredClock(why, part, gpu.mean(names.SM_CLOCK, gpu.of(quantity) == 1))
        for quantity, why in _WHY.items()
        if (part := gpu.mean(quantity))
    ]
    return GpuUse(
        device=gpu.device,
        readings=len(gpu.time_ns),
        seconds=float(gpu.in_steps_ns.sum()) / 1e9,
        sm_active=share(names.SM_ACTIVE),
        tensor_active=share(names.TENSOR_ACTIVE),
        dram_active=share(names.DRAM_ACTIVE),
        sm_clock_mhz=gpu.mean(names.SM_CLOCK),
        sm_clock_max_mhz=gpu.greatest(names.SM_CLOCK_MAX),
        memory_clock_mhz=gpu.mean(names.MEMORY_CLOCK),
        power_w=gpu.mean(names.POWER),
        power_limit_w=gpu.mean(names.POWER_LIMIT),
        temperature_c=gpu.mean(names.TEMPERATURE),
        temperature_max_c=gpu.greatest(names.TEMPERATURE),
        lowered=tuple(sorted(lowered, key=lambda one: -one.share)),
    )


def _lowered(gpu: GpuUse, one: LoweredClock) -> str:
    share = f"for {small_percent(one.share, 1)} of the time ({one.reason})"
    if one.sm_clock_mhz is None:
        return f"clock lowered {share}"
    most = "" if gpu.sm_clock_max_mhz is None else f" of {gpu.sm_clock_max_mhz / 1e3:.2f}"
    return f"{one.sm_clock_mhz / 1e3:.2f}{most} GHz {share}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else small_percent(share, 1)


def _cells(unit: str, mean: float | None, limit: float | None = None) -> list[str]:
    return [
        UNKNOWN if mean is None else f"{mean:,.0f} {unit}",
        "" if limit is None else f"{limit:,.0f} {unit}",
    ]


def _over_steps(
    run: Run, time_ns: NDArray[np.int64], known: dict[str, NDArray[np.float64]]
) -> tuple[NDArray[np.int64], dict[str, list[float]]]:
    """The steps in which there were readings, or the last ones before, with the means of these;
    neighbours together where there would be too many."""
    steps = run.steps.closed
    place = np.searchsorted(steps["begin_ns"], time_ns) - 1
    indices = steps["index"][place[place >= 0]]
    if not len(indices):
        return indices, {}
    width = -(-int(indices[-1] - indices[0] + 1) // _MOST_POINTS)
    first = np.unique(indices // width, return_index=True)[1]
    means = {
        name: [
            math.nan if np.isnan(some).all() else float(np.nanmean(some))
            for some in np.split(values[place >= 0], first[1:])
        ]
        for name, values in known.items()
    }
    return indices[first], means


def _lost(run: Run, gpu: GpuReadings, is_known: NDArray[np.bool_]) -> tuple[NDArray[np.void], str]:
    """Return how much longer than at the usual clock each step has taken at most, of those that a
    reading is near; and what has lowered the clock."""
    time_ns, mhz = gpu.time_ns[is_known], gpu.of(names.SM_CLOCK)[is_known]
    lowered = {words: gpu.of(quantity)[is_known] == 1 for quantity, words in _WHY.items()}
    steps = run.steps.closed
    middle_ns = (steps["begin_ns"] + steps["end_ns"]) // 2
    following = np.searchsorted(time_ns, middle_ns).clip(1, len(time_ns) - 1)
    earlier = middle_ns - time_ns[following - 1] < time_ns[following] - middle_ns
    nearest = np.where(earlier, following - 1, following)
    is_near = np.abs(time_ns[nearest] - middle_ns) <= _NEAR_NS
    nearest, steps = nearest[is_near], steps[is_near]
    usual_mhz = float(np.median(mhz))
    is_lowered = np.logical_or.reduce([*lowered.values()])[nearest]
    share = 1 - mhz[nearest] / usual_mhz if usual_mhz else np.zeros(len(steps))
    lost_ns = np.where(is_lowered, share.clip(0), 0) * durations_ns_of(steps)
    counts = {
        words: int(np.count_nonzero(of[nearest][lost_ns > 0])) for words, of in lowered.items()
    }
    why = max(counts, key=lambda words: counts[words])
    return amounts_of(steps["index"], lost_ns.astype(np.int64)), why if counts[why] else ""


ASPECT = GpuUseAspect()
