# SPDX-License-Identifier: Apache-2.0
"""Energy that GPUs have used during a run, and the ENERGY document (docs/run-file.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.json_document import Count, decode_object

ENERGY_DTYPE = np.dtype([("time_ns", np.int64), ("energy_mj", np.int64)])
"""A reading of a counter: when it was, since the run began, and millijoules since some time."""

_Reading = Annotated[int, Meta(ge=0, lt=1 << 62)]


class _Gpu(Struct, frozen=True):
    """The fields of the file that users see as they are."""

    device: Count
    uuid: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9-]{1,100}\Z")]


class GpuEnergy(_Gpu, frozen=True):
    """The readings of one GPU's energy counter.

    Attributes:
        device: Number of the device in the process.
        uuid: The GPU's UUID.
        samples: In the columns of `ENERGY_DTYPE`, ascending.
    """

    samples: NDArray[np.void] = field(default_factory=lambda: np.empty(0, ENERGY_DTYPE))

    @property
    def joules(self) -> float | None:
        """The energy that the whole GPU used from the first reading to the last."""
        if len(self.samples) < 2:
            return None
        energy = self.samples["energy_mj"]
        return float(energy[-1] - energy[0]) / 1e3

    @property
    def seconds(self) -> float:
        """The time between these two."""
        time_ns = self.samples["time_ns"]
        return float(time_ns[-1] - time_ns[0]) / 1e9 if len(time_ns) else 0.0

    def joules_until(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The counter at some times, in joules, linear between two readings; NaN before the first
        and after the last."""
        known_ns, energy_mj = self.samples["time_ns"], self.samples["energy_mj"]
        if not len(known_ns):
            return np.full(len(times_ns), np.nan)
        joules = (energy_mj - energy_mj[0]) / 1e3
        found: NDArray[np.float64] = np.interp(
            times_ns, known_ns, joules, left=np.nan, right=np.nan
        )
        return found


class _GpuReadings(_Gpu, frozen=True):
    samples: tuple[tuple[_Reading, _Reading], ...]


class _Document(Struct, frozen=True):
    """The ENERGY document."""

    gpus: tuple[_GpuReadings, ...] = ()


def decode_energy(data: bytes, anchor: Mapping[str, int]) -> tuple[GpuEnergy, ...]:
    """Decode the document.

    Args:
        anchor: the first reading of the machine's clocks.

    Raises:
        RunFileDamagedError: the document does not fit, or there is no time axis without an anchor.
    """
    found = decode_object(data, "ENERGY", _Document)
    run_began_ns = began_ns(anchor, "monotonic_ns")
    if run_began_ns is None:
        raise nonsense("ENERGY", "when the run began by the machine's clock is not known")
    return tuple(_energy(gpu, run_began_ns) for gpu in found.gpus)


def _energy(found: _GpuReadings, run_began_ns: int) -> GpuEnergy:
    samples = np.array(list(found.samples), ENERGY_DTYPE)
    if (np.diff(samples["time_ns"]) <= 0).any() or (np.diff(samples["energy_mj"]) < 0).any():
        raise nonsense("ENERGY", "its readings do not ascend")
    samples["time_ns"] -= run_began_ns
    return GpuEnergy(found.device, found.uuid, samples)
