# SPDX-License-Identifier: Apache-2.0
"""The clock of a GPU as a cause of slow steps. It has no section of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.clocks import NAME
from pyinstrument_gpu.aspects.clocks.data import (
    HARDWARE,
    HEAT,
    POWER,
    GpuClock,
    decode_clocks,
)
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.cause import Cause, Precedence, amounts_of
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run

_NEAR_NS = 1_500_000_000
"""So long before and after a reading it says something."""
_WHY = {
    POWER: "the power cap",
    HEAT: "heat",
    HARDWARE: "the GPU's hardware",
}


class ClocksAspect(DocumentAspect):
    """How fast a GPU's clock went, and why not faster."""

    name = NAME
    noted = "the clocks of GPUs"
    missing = ()

    def decode(self, data: bytes, found: Found) -> tuple[GpuClock, ...]:
        return decode_clocks(data, found.anchor)

    def causes(self, run: Run) -> Iterator[Cause]:
        """A lower clock makes a step longer by that much at most, if all of it is the GPU's work.
        Of the reasons that have lowered it the most frequent is named."""
        for gpu in run.clocks:
            if len(gpu.samples) < 2:
                continue
            amounts, why = _lost(run, gpu)
            yield Cause(
                name="gpu_clock",
                words=f"a lower clock of the GPU, by {why}" if why else "a lower clock of the GPU",
                remedy="look at `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE`; raise the power "
                "cap, or cool it better",
                precedence=Precedence.HINDRANCE,
                amounts=amounts,
                known=amounts["step"],
            )


def _lost(run: Run, gpu: GpuClock) -> tuple[NDArray[np.void], str]:
    """How much longer than at the usual clock each step has taken at most, of those that a reading
    is near; and what has lowered the clock."""
    samples, steps = gpu.samples, run.steps.closed
    middle_ns = (steps["begin_ns"] + steps["end_ns"]) // 2
    following = np.searchsorted(samples["time_ns"], middle_ns).clip(1, len(samples) - 1)
    earlier = (
        middle_ns - samples["time_ns"][following - 1] < samples["time_ns"][following] - middle_ns
    )
    nearest = samples[np.where(earlier, following - 1, following)]
    is_near = np.abs(nearest["time_ns"] - middle_ns) <= _NEAR_NS
    nearest, steps = nearest[is_near], steps[is_near]
    usual_mhz = float(np.median(samples["sm_mhz"]))
    is_lowered = nearest["reasons"] & (POWER | HEAT | HARDWARE) != 0
    share = 1 - nearest["sm_mhz"] / usual_mhz if usual_mhz else np.zeros(len(steps))
    lost_ns = np.where(is_lowered, share.clip(0), 0) * (steps["end_ns"] - steps["begin_ns"])
    counts = {
        words: int(np.count_nonzero(nearest["reasons"][lost_ns > 0] & bits))
        for bits, words in _WHY.items()
    }
    why = max(counts, key=lambda words: counts[words])
    return amounts_of(steps["index"], lost_ns.astype(np.int64)), why if counts[why] else ""


ASPECT = ClocksAspect()
