# SPDX-License-Identifier: Apache-2.0
"""The ENERGY document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.energy.data import ENERGY_DTYPE, GpuEnergy
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.json_document import Each, fitting, json_object

_is_reading = fits.integer(0, 1 << 62)
_is_gpu = fits.fields(
    device=fits.count,
    uuid=fits.matches(r"[A-Za-z0-9-]{1,100}"),
    samples=fits.list_of(fits.row(_is_reading, _is_reading)),
)


def decode_energy(data: bytes, anchor: Mapping[str, int]) -> tuple[tuple[GpuEnergy, ...], int]:
    """What the document says, and of how many GPUs nothing makes sense.

    Args:
        anchor: the first reading of the machine's clocks; without it there is no time axis, and
            nothing of the document is left.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    left_out: list[str] = []
    found = fitting(json_object(data, "ENERGY"), {"gpus": Each(_is_gpu)}, left_out)
    gpus = [_gpu(one, began_ns(anchor, "monotonic_ns")) for one in found.get("gpus", [])]
    known = tuple(gpu for gpu in gpus if gpu is not None)
    return known, len(left_out) + len(gpus) - len(known)


def _gpu(found: Mapping[str, Any], run_began_ns: int | None) -> GpuEnergy | None:
    """None where it is not known when the readings were, or they do not ascend."""
    samples = np.array([(time_ns, energy) for time_ns, energy in found["samples"]], ENERGY_DTYPE)
    is_descending = (np.diff(samples["time_ns"]) <= 0).any() or (
        np.diff(samples["energy_mj"]) < 0
    ).any()
    if run_began_ns is None or is_descending:
        return None
    samples["time_ns"] -= run_began_ns
    return GpuEnergy(found["device"], found["uuid"], samples)
