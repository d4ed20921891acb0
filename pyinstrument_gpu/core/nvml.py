# SPDX-License-Identifier: Apache-2.0
"""Readings by NVML of an NVIDIA GPU: its energy counter, and how it is used.

The library comes with the driver, and is loaded here without any package: NVIDIA's nvidia-ml-py
would be one more requirement of every recording, and takes longer to import. A GPU is found by its
UUID: NVML numbers all GPUs of a machine, and a process those that CUDA_VISIBLE_DEVICES leaves it.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyinstrument_gpu.core import gpu_readings as names
from pyinstrument_gpu.patching.import_hook import can_use_cuda, torch_with_cuda

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_SM, _MEMORY = 1, 2  # of clocks
_REASONS = {names.BY_POWER: 0x4, names.BY_HEAT: 0x20 | 0x40, names.BY_HARDWARE: 0x8 | 0x80}
"""Bits of NVML's reasons why a clock is not higher. Others, as that the GPU has nothing to do, say
nothing of how long work takes."""
_NUMBERS = {
    names.SM_CLOCK: ("nvmlDeviceGetClockInfo", [_SM], 1.0),
    names.MEMORY_CLOCK: ("nvmlDeviceGetClockInfo", [_MEMORY], 1.0),
    names.SM_CLOCK_MAX: ("nvmlDeviceGetMaxClockInfo", [_SM], 1.0),
    names.POWER: ("nvmlDeviceGetPowerUsage", [], 1e-3),
    names.POWER_LIMIT: ("nvmlDeviceGetEnforcedPowerLimit", [], 1e-3),
    names.TEMPERATURE: ("nvmlDeviceGetTemperature", [0], 1.0),  # of the chip
}
"""A function of NVML, what it wants to know, and what its number is multiplied by."""


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

    def read(self) -> Mapping[str, float]:
        """Return the current values by their names. What is unknown is not among them.

        Raises:
            NvmlError: none can be read.
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

    def read(self) -> dict[str, int]:
        energy = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(energy))
        return {"energy_mj": energy.value}


class UseReader(GpuReader):
    """A reader of how a GPU is used: all of `core/gpu_readings.py` that it knows, for the whole
    GPU, whoever uses it.

    Args:
        clock: the time in seconds.
    """

    def __init__(
        self, uuid: str, library: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._activity: _Activity | None = None
        super().__init__(uuid, library)
        with contextlib.suppress(NvmlError):
            self._activity = _Activity(self._call, self._handle, self._clock())

    def read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._activity is not None:
            with contextlib.suppress(NvmlError):
                found |= self._activity.read(self._clock())
        number, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        for name, (function, which, factor) in _NUMBERS.items():
            with contextlib.suppress(NvmlError):
                self._call(function, self._handle, *which, ctypes.byref(number))
                found[name] = number.value * factor
        with contextlib.suppress(NvmlError):
            # Its name in all versions; newer ones call it "clocks event reasons".
            function = "nvmlDeviceGetCurrentClocksThrottleReasons"
            self._call(function, self._handle, ctypes.byref(reasons))
            found |= {name: float(reasons.value & bits != 0) for name, bits in _REASONS.items()}
        if not found:
            raise NvmlError("nothing can be read of this GPU")
        return found

    def close(self) -> None:
        if self._activity is not None:
            self._activity.close()
        super().close()


class GpmMetric(ctypes.Structure):
    """`nvmlGpmMetric_t`."""

    _fields_ = (
        ("metricId", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_int),
        ("value", ctypes.c_double),
        ("metricInfo", ctypes.c_char_p * 3),
    )


class GpmMetrics(ctypes.Structure):
    """`nvmlGpmMetricsGet_t`, which has room for more metrics in each version of NVML: only the
    first `numMetrics` are looked at."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numMetrics", ctypes.c_uint),
        ("sample1", ctypes.c_void_p),
        ("sample2", ctypes.c_void_p),
        ("metrics", GpmMetric * 512),
    )


class GpmSupport(ctypes.Structure):
    """`nvmlGpmSupport_t`."""

    _fields_ = (("version", ctypes.c_uint), ("isSupportedDevice", ctypes.c_uint))


class _Activity:
    """The activity of a GPU's units between two samples of NVML's GPU performance monitoring (GPM),
    which Hopper and newer GPUs have. Those of a GPU that is divided (MIG) would be of all its
    parts.

    Raises:
        NvmlError: the GPU has none.
    """

    METRICS: Mapping[str, int] = {names.SM_ACTIVE: 2, names.TENSOR_ACTIVE: 5, names.DRAM_ACTIVE: 10}
    SHORTEST_S = 0.1
    """Between two samples: over less NVML tells nothing that is certain."""

    def __init__(self, call: Callable[..., None], handle: Any, now_s: float) -> None:
        self._call, self._handle = call, handle
        support = GpmSupport(version=1)
        call("nvmlGpmQueryDeviceSupport", handle, ctypes.byref(support))
        is_divided, later = ctypes.c_uint(), ctypes.c_uint()
        with contextlib.suppress(NvmlError):  # it can't be divided
            call("nvmlDeviceGetMigMode", handle, ctypes.byref(is_divided), ctypes.byref(later))
        if not support.isSupportedDevice or is_divided.value:
            raise NvmlError("this GPU has no performance monitoring, or is divided")
        self._samples: list[ctypes.c_void_p] = []
        try:
            for _ in range(2):
                sample = ctypes.c_void_p()
                call("nvmlGpmSampleAlloc", ctypes.byref(sample))
                self._samples.append(sample)
            self._take(now_s)
        except NvmlError:
            self.close()
            raise

    def read(self, now_s: float) -> dict[str, float]:
        """Return averages since it was read before, in percent."""
        if now_s - self._taken_s < self.SHORTEST_S:
            return {}
        self._take(now_s)
        found = GpmMetrics(1, len(self.METRICS), *self._samples)
        for metric, number in zip(found.metrics, self.METRICS.values(), strict=False):
            metric.metricId = number
        self._call("nvmlGpmMetricsGet", ctypes.byref(found))
        return {
            name: metric.value
            for name, metric in zip(self.METRICS, found.metrics, strict=False)
            if metric.nvmlReturn == _SUCCESS and 0 <= metric.value < 101
        }

    def close(self) -> None:
        for sample in self._samples:
            with contextlib.suppress(NvmlError):
                self._call("nvmlGpmSampleFree", sample)

    def _take(self, now_s: float) -> None:
        earlier, last = self._samples
        self._call("nvmlGpmSampleGet", self._handle, earlier)
        self._samples = [last, earlier]
        self._taken_s = now_s


_Made = TypeVar("_Made")


def reader_in_use(make: Callable[[str], _Made]) -> tuple[int, _Made] | None:
    """The calling thread's current device and what is made of its UUID, such as a reader; None
    while CUDA is not in use.

    Raises:
        NvmlError: it has none, or there can't be any.
    """
    if not can_use_cuda():
        raise NvmlError("there is no NVIDIA driver here, or a build of torch without CUDA")
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
