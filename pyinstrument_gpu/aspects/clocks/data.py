# SPDX-License-Identifier: Apache-2.0
"""The clock of a GPU during a run, and the document `clocks` of the run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.clocks import NAME
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.json_document import Count, decode_object

CLOCK_DTYPE = np.dtype([("time_ns", np.int64), ("sm_mhz", np.int64), ("reasons", np.int64)])
"""A reading: when it was, since the run began, the clock of the multiprocessors, and the bits of
NVML that say why it is not higher."""

POWER, HEAT, HARDWARE = 0x4, 0x20 | 0x40, 0x8 | 0x80
"""Bits of NVML's reasons for which a clock is lowered: the power cap; heat; and slowdowns of the
hardware, by its power supply for example."""

_Reading = Annotated[int, Meta(ge=0, lt=1 << 62)]


class GpuClock(Struct, frozen=True):
    """The readings of one GPU's clock.

    Attributes:
        device: number of the device in the process.
        samples: in the columns of `CLOCK_DTYPE`, ascending.
    """

    device: Count
    samples: NDArray[np.void] = field(default_factory=lambda: np.empty(0, CLOCK_DTYPE))


class _GpuReadings(Struct, frozen=True):
    device: Count
    samples: tuple[tuple[_Reading, _Reading, _Reading], ...]


class _Document(Struct, frozen=True):
    gpus: tuple[_GpuReadings, ...] = ()


def decode_clocks(data: bytes, anchor: Mapping[str, int]) -> tuple[GpuClock, ...]:
    """What the document says.

    Args:
        anchor: the first reading of the machine's clocks.

    Raises:
        RunFileDamagedError: the document does not fit, or there is no time axis without an anchor.
    """
    found = decode_object(data, NAME, _Document)
    run_began_ns = began_ns(anchor, "monotonic_ns")
    if run_began_ns is None:
        raise nonsense(NAME, "when the run began by the machine's clock is not known")
    clocks = []
    for gpu in found.gpus:
        samples = np.array(list(gpu.samples), CLOCK_DTYPE)
        if (np.diff(samples["time_ns"]) <= 0).any():
            raise nonsense(NAME, "its readings do not ascend")
        samples["time_ns"] -= run_began_ns
        clocks.append(GpuClock(gpu.device, samples))
    return tuple(clocks)
