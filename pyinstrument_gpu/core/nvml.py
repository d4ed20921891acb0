# SPDX-License-Identifier: Apache-2.0
"""What NVML reads of an NVIDIA GPU: its energy counter, and its clock.

The library comes with the driver, and is loaded here without any package. A GPU is found by its
UUID: NVML numbers all GPUs of a machine, and a process those that CUDA_VISIBLE_DEVICES leaves it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from pyinstrument_gpu.patching.import_hook import torch_with_cuda

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_SM_CLOCK = 1


class NvmlError(Exception):
    """NVML isn't there, or it refuses."""


class GpuReader:
    """Something that can be read of a GPU. The calls of the driver are made without the GIL, and
    don't wait for the GPU.

    Args:
        uuid: the GPU's, as "GPU-8-4-4-4-12 hexadecimal digits".
        library: NVML; None loads it.

    Raises:
        NvmlError: it can't be loaded, or can't read that of this GPU.
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
            self.read()
        except NvmlError:
            self.close()
            raise

    def read(self) -> tuple[int, ...]:
        """The values of now.

        Raises:
            NvmlError: they can't be read.
        """
        raise NotImplementedError

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


class EnergyCounter(GpuReader):
    """The energy that a GPU has used since its driver was loaded, in millijoules. Counted from
    Volta on."""

    def read(self) -> tuple[int]:
        energy = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(energy))
        return (energy.value,)


class ClockReader(GpuReader):
    """The clock of a GPU's multiprocessors, in MHz, and why it is not higher, in the bits of
    NVML."""

    def read(self) -> tuple[int, int]:
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        self._call("nvmlDeviceGetClockInfo", self._handle, _SM_CLOCK, ctypes.byref(clock))
        # Its name in all versions; newer ones call it "clocks event reasons".
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(reasons))
        return clock.value, reasons.value


_Made = TypeVar("_Made")


def reader_in_use(make: Callable[[str], _Made]) -> tuple[int, _Made] | None:
    """The calling thread's current device and what is made of its UUID, such as a reader; None
    while CUDA is not in use.

    Raises:
        NvmlError: it has none.
    """
    torch = torch_with_cuda()
    if torch is None:
        return None
    device: int = torch.cuda.current_device()
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return device, make(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def _load() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NvmlError(str(error)) from error
