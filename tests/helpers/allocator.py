# SPDX-License-Identifier: Apache-2.0
"""A device's allocator whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable


class _Statistic:
    """What the allocator counts of one thing."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def numbers(self) -> dict[str, int]:
        return dict(vars(self))


class SimulatedAllocator:
    """Allocates bytes, keeps what was freed reserved, and counts as torch's does."""

    def __init__(self) -> None:
        self._allocated_bytes = _Statistic()
        self._reserved_bytes = _Statistic()
        self._allocation = _Statistic()
        self._segment = _Statistic()
        self._private_pools: dict[tuple[int, int], _Statistic] = {}
        self.retries = 0

    @property
    def allocated(self) -> int:
        return self._allocated_bytes.current

    @property
    def peak(self) -> int:
        return self._allocated_bytes.peak

    def allocate(self, size: int) -> None:
        self._allocation.increase(1)
        self._allocated_bytes.increase(size)
        missing = self._allocated_bytes.current - self._reserved_bytes.current
        if missing > 0:
            self._segment.increase(1)
            self._reserved_bytes.increase(missing)

    def free(self, size: int) -> None:
        self._allocation.decrease(1)
        self._allocated_bytes.decrease(size)

    def empty_cache(self) -> None:
        unused = self._reserved_bytes.current - self._allocated_bytes.current
        if unused:
            self._segment.decrease(1)
            self._reserved_bytes.decrease(unused)

    def use_private_pool(self, number: int, size: int) -> None:
        """Makes a pool and deletes it. It is known by its peak until that is reset."""
        pool = self._private_pools[0, number] = _Statistic()
        pool.increase(size)
        pool.decrease(size)

    def reset_peak(self) -> None:
        for each in (
            self._allocated_bytes,
            self._reserved_bytes,
            self._allocation,
            self._segment,
        ):
            each.peak = each.current
        self._private_pools.clear()

    def statistics(self) -> dict[str, object]:
        """As `torch._C._cuda_memoryStats` returns them."""
        groups = {
            "allocated_bytes": self._allocated_bytes,
            "requested_bytes": self._allocated_bytes,
            "active_bytes": self._allocated_bytes,
            "reserved_bytes": self._reserved_bytes,
            "inactive_split_bytes": _Statistic(),
            "allocation": self._allocation,
            "active": self._allocation,
            "segment": self._segment,
            "inactive_split": _Statistic(),
        }
        return {
            **{
                group: {pool: each.numbers() for pool in ("all", "small_pool", "large_pool")}
                for group, each in groups.items()
            },
            "oversize_allocations": self._allocation.numbers(),
            "oversize_segments": self._segment.numbers(),
            "reserved_bytes_by_private_pools": {
                pool: {"all": each.numbers()} for pool, each in self._private_pools.items()
            },
            "num_alloc_retries": self.retries,
            "num_ooms": 0,
        }


class SimulatedDevice:
    """A source of the allocator's numbers, as `MemoryWatch` takes it."""

    device = 0
    torch_device = "cpu"

    def __init__(self) -> None:
        self.allocator = SimulatedAllocator()

    def statistics(self) -> Callable[[], object]:
        return self.allocator.statistics

    def snapshot(self) -> object:
        return {"segments": [], "device_traces": []}

    def peak_reset(self) -> str:
        return "it was not asked for"


DEVICES = [SimulatedAllocator(), SimulatedAllocator()]
"""Those that the functions below are about. As their hooks stay for good, they exist once."""
during_reset: list[Callable[[], None]] = []
"""What other threads do just before the peaks are reset: each is called once."""


class _Statistics(dict[int, object]):
    def __missing__(self, device: int) -> object:
        return DEVICES[device].statistics()


class _Resets(dict[int, object]):
    def __missing__(self, device: int) -> None:
        while during_reset:
            during_reset.pop()()
        DEVICES[device].reset_peak()


# Builtin functions of one argument, as those of torch are.
TORCH_FUNCTIONS: dict[str, Callable[[int], object]] = {
    "_cuda_memoryStats": _Statistics().__getitem__,
    "_cuda_resetPeakMemoryStats": _Resets().__getitem__,
    "_accelerator_getDeviceStats": _Statistics().__getitem__,
    "_accelerator_resetPeakStats": _Resets().__getitem__,
}
