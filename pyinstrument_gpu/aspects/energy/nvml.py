# SPDX-License-Identifier: Apache-2.0
"""The energy counter of an NVIDIA GPU, which NVML reads.

The library comes with the driver, and is loaded here without any package. A GPU is found by its
UUID: NVML numbers all GPUs of a machine, and a process those that CUDA_VISIBLE_DEVICES leaves it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pyinstrument_gpu.recording.device_timing import torch_with_cuda

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class NvmlError(Exception):
    """NVML isn't there, or it refuses."""


class EnergyCounter:
    """The energy that a GPU has used since its driver was loaded. Counted from Volta on.

    Args:
        uuid: the GPU's, as "GPU-8-4-4-4-12 hexadecimal digits".
        library: NVML; None loads it.

    Raises:
        NvmlError: it can't be loaded, or the GPU has no such counter.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self.uuid = uuid
        self._library = _load() if library is None else library
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        try:
            self._call(
                "nvmlDeviceGetHandleByUUID", uuid.encode("ascii"), ctypes.byref(self._handle)
            )
            self.read_mj()
        except NvmlError:
            self.close()
            raise

    def read_mj(self) -> int:
        """In millijoules. A call of the driver, without the GIL; it doesn't wait for the GPU.

        Raises:
            NvmlError: it can't be read.
        """
        energy = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(energy))
        return energy.value

    def close(self) -> None:
        """Let go of NVML, which counts its users."""
        self._library.nvmlShutdown()

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NvmlError(f"this version of NVML has no {name}") from error
        if status != _SUCCESS:
            raise NvmlError(f"{name} failed with {status}")


def counter_in_use() -> tuple[int, EnergyCounter] | None:
    """The calling thread's current device and its counter; None while CUDA is not in use.

    Raises:
        NvmlError: it has none.
    """
    torch = torch_with_cuda()
    if torch is None:
        return None
    device: int = torch.cuda.current_device()
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return device, EnergyCounter(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def _load() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NvmlError(str(error)) from error
