# SPDX-License-Identifier: Apache-2.0
"""NVML, as far as it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_FOUND = 6
NOT_SUPPORTED = 3
NO_PERMISSION = 4
GPU_IS_LOST = 15

SM_CLOCK, MEMORY_CLOCK, SM_CLOCK_MAX = "clock 1", "clock 2", "greatest clock 1"
ENERGY, POWER, POWER_LIMIT, TEMPERATURE = "energy", "power", "power limit", "temperature"
REASONS, ACTIVITY = "reasons", "activity"
SM, TENSOR, DRAM = 2, 5, 10


class SimulatedNvml:
    """The library: one GPU.

    Attributes:
        status: of all readings.
        statuses: of single ones, and of single metrics of GPM.
        numbers: what they are.
        has_gpm, is_divided: what the GPU can, and whether it is divided (MIG).
        counters: of the metrics of GPM, in percent times seconds, as `passes` moves them on.
        users: of the library.
        samples: of GPM that were not freed.
        before_reading: called before each reading.
    """

    def __init__(self, uuid: str = "GPU-1", status: int = 0) -> None:
        self.uuid = uuid
        self.status = status
        self.statuses: dict[Any, int] = {}
        self.numbers = dict.fromkeys(
            [*(ENERGY, SM_CLOCK, MEMORY_CLOCK, SM_CLOCK_MAX), POWER, POWER_LIMIT, TEMPERATURE], 0
        )
        self.numbers[REASONS] = 0
        self.has_gpm = True
        self.is_divided = False
        self.counters = {SM: 0.0, TENSOR: 0.0, DRAM: 0.0}
        self.time_s = 0.0
        self.users = 0
        self.samples: dict[int, tuple[float, dict[int, float]]] = {}
        self.before_reading: Callable[[], object] = lambda: None

    def passes(self, seconds: float, sm: float, tensor: float, dram: float) -> None:
        """So long the units of the GPU were so busy, in percent."""
        self.time_s += seconds
        for metric, percent in ((SM, sm), (TENSOR, tensor), (DRAM, dram)):
            self.counters[metric] += percent * seconds

    def nvmlInit_v2(self) -> int:
        self.users += 1
        return 0

    def nvmlShutdown(self) -> int:
        assert not self.samples
        self.users -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() != self.uuid:
            return NOT_FOUND
        handle._obj.value = 7
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        return self._read(ENERGY, handle, energy)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, clock: Any) -> int:
        return self._read(f"clock {kind}", handle, clock)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int, clock: Any) -> int:
        return self._read(f"greatest clock {kind}", handle, clock)

    def nvmlDeviceGetPowerUsage(self, handle: Any, power_mw: Any) -> int:
        return self._read(POWER, handle, power_mw)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, limit_mw: Any) -> int:
        return self._read(POWER_LIMIT, handle, limit_mw)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, temperature: Any) -> int:
        assert sensor == 0
        return self._read(TEMPERATURE, handle, temperature)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        return self._read(REASONS, handle, reasons)

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        assert (handle.value, support._obj.version) == (7, 1)
        support._obj.isSupportedDevice = self.has_gpm
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, now: Any, later: Any) -> int:
        now._obj.value = later._obj.value = self.is_divided
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = len(self.samples) + 1
        self.samples[sample._obj.value] = (0.0, {})
        return 0

    def nvmlGpmSampleFree(self, sample: Any) -> int:
        del self.samples[sample.value]
        return 0

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        assert handle.value == 7
        status = self._status(ACTIVITY)
        if not status:
            self.samples[sample.value] = (self.time_s, dict(self.counters))
        return status

    def nvmlGpmMetricsGet(self, metrics: Any) -> int:
        found = metrics._obj
        assert found.version == 1
        begin_s, before = self.samples[found.sample1]
        end_s, after = self.samples[found.sample2]
        for metric in found.metrics[: found.numMetrics]:
            number = metric.metricId
            metric.nvmlReturn = self.statuses.get(number, 0)
            metric.value = (after[number] - before[number]) / (end_s - begin_s)
        return self.status

    def _read(self, what: str, handle: Any, number: Any) -> int:
        assert handle.value == 7
        number._obj.value = self.numbers[what]
        return self._status(what)

    def _status(self, what: str) -> int:
        self.before_reading()
        return self.status or self.statuses.get(what, 0)
