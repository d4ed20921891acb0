# SPDX-License-Identifier: Apache-2.0
"""The ENERGY document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.model.energy import ENERGY_DTYPE, GpuEnergy

_UUID = re.compile(r"[A-Za-z0-9-]{1,100}")
_LIMIT = 1 << 62


class EnergyDocument(NamedTuple):
    """`left_out` is the number of GPUs of which nothing makes sense."""

    gpus: tuple[GpuEnergy, ...]
    left_out: int


def decode_energy(data: bytes, anchor: Mapping[str, int]) -> EnergyDocument:
    """What the document says.

    Args:
        anchor: the first reading of the machine's clocks; without it there is no time axis, and
            nothing of the document is left.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    values = JsonObject.decode(data, "ENERGY").document.get("gpus", [])
    if not isinstance(values, list):
        return EnergyDocument((), 1)
    if not {"monotonic_ns", "run_ns"} <= anchor.keys():
        return EnergyDocument((), len(values))
    gpus = [_gpu(value, anchor["run_ns"] - anchor["monotonic_ns"]) for value in values]
    return EnergyDocument(tuple(gpu for gpu in gpus if gpu is not None), gpus.count(None))


def _gpu(value: Any, offset_ns: int) -> GpuEnergy | None:
    if not isinstance(value, dict) or not is_count(value.get("device")):
        return None
    uuid, samples = value.get("uuid"), value.get("samples")
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid) or not isinstance(samples, list):
        return None
    if not all(map(_is_sample, samples)):
        return None
    array = np.array([(time + offset_ns, energy) for time, energy in samples], ENERGY_DTYPE)
    if (np.diff(array["time_ns"]) <= 0).any() or (np.diff(array["energy_mj"]) < 0).any():
        return None
    return GpuEnergy(value["device"], uuid, array)


def _is_sample(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(is_count(number) and number < _LIMIT for number in value)
