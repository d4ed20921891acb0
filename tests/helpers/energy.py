# SPDX-License-Identifier: Apache-2.0
"""NVML, with energy counters and clocks, as far as they are needed."""

from __future__ import annotations

from typing import Any

NOT_FOUND = 6
NOT_SUPPORTED = 3


class SimulatedNvml:
    """The library: one GPU with an energy counter and a clock."""

    def __init__(self, uuid: str = "GPU-1", status: int = 0) -> None:
        self.uuid = uuid
        self.status = status  # of readings
        self.energy_mj = self.sm_mhz = self.reasons = 0
        self.users = 0

    def nvmlInit_v2(self) -> int:
        self.users += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.users -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() != self.uuid:
            return NOT_FOUND
        handle._obj.value = 7
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        assert handle.value == 7
        energy._obj.value = self.energy_mj
        return self.status

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, clock: Any) -> int:
        assert (handle.value, kind) == (7, 1)
        clock._obj.value = self.sm_mhz
        return self.status

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        reasons._obj.value = self.reasons
        return self.status
