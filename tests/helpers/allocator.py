# SPDX-License-Identifier: Apache-2.0
"""A device's allocator whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable


class SimulatedAllocator:
    """Allocates bytes, keeps what was freed reserved, and counts as torch's does."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = self.reserved_peak = 0

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def free(self, size: int) -> None:
        self.allocated -= size

    def reset_peak(self) -> None:
        self.peak, self.reserved_peak = self.allocated, self.reserved

    def numbers(self) -> tuple[int, int, int, int]:
        return self.allocated, self.peak, self.reserved, self.reserved_peak

    def statistics(self) -> dict[str, object]:
        """As `torch._C._cuda_memoryStats` returns them."""
        pools: dict[str, object] = {"small_pool": {}, "large_pool": {}}
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}, **pools},
            "reserved_bytes": {
                "all": {"current": self.reserved, "peak": self.reserved_peak},
                **pools,
            },
            "num_alloc_retries": 0,
        }


class SimulatedDevice:
    """A source of the allocator's numbers, as `MemoryWatch` takes it."""

    device = 0

    def __init__(self) -> None:
        self.allocator = SimulatedAllocator()

    def statistics(self) -> Callable[[], object]:
        return self.allocator.numbers
