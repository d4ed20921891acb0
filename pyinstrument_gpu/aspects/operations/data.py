# SPDX-License-Identifier: Apache-2.0
"""The results of a window of torch.profiler, by operation and phase.

The declarations are also those of the OPERATIONS document (docs/run-file.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from pyinstrument_gpu.core.file.json_document import Count, decode_object
from pyinstrument_gpu.core.flops import Flops

_PerStep = Annotated[float, Meta(ge=0, lt=1 << 63)]


class Operation(Struct, frozen=True):
    """The calls of one operation in one phase: means per profiled step.

    Attributes:
        name: as torch calls it, `aten::addmm` for example; unknown of those too many to be told
            apart, and of all in one phase together.
        path: the phase in which it was called; unknown outside of all.
        calls: how often it was called.
        host_ns: its time on the host without that of the operations that it called, on all threads.
        device_ns: the time of the kernels and copies that it launched itself; unknown where nothing
            of a device was seen.
        launches: how many kernels, copies and graphs it enqueued itself; unknown as `device_ns`.
    """

    name: str | None
    path: str | None
    calls: _PerStep
    host_ns: _PerStep
    device_ns: _PerStep | None
    launches: _PerStep | None

    def __add__(self, other: Operation) -> Operation:
        return replace(
            self,
            calls=self.calls + other.calls,
            host_ns=self.host_ns + other.host_ns,
            device_ns=_sum(self.device_ns, other.device_ns),
            launches=_sum(self.launches, other.launches),
        )


class DeviceUse(Struct, frozen=True):
    """The use of devices between the first and the last work that was seen of each.

    Attributes:
        devices: how many devices.
        busy_ns: the time at which a kernel or copy ran on any stream, over all devices.
        elapsed_ns: the time between the first and the last, over all devices.
    """

    devices: Count
    busy_ns: Count
    elapsed_ns: Count

    def __post_init__(self) -> None:
        if self.busy_ns > self.elapsed_ns:
            raise ValueError("devices are busy for longer than the time that has elapsed")


class Operations(Struct, frozen=True):
    """The operations that torch.profiler has seen in a window of steps.

    Attributes:
        profiled: the steps of every window of the run, as pairs of the first and the last index. A
            profiled step is slower than others.
        first_step, last_step: the window that is told here, the newest one; None where it ended
            within its first step.
        steps: how many of its steps were whole, by which sums were divided.
        operations: what was called, the longest first.
        device: None where nothing of a device was seen.
        stopped_ns: for how long training stood still for it, before and after the window.
        trace: the file of the kept trace, or None.
        flops: what was counted of floating-point operations, if that was asked for.
        notes: what went wrong, and why.
    """

    profiled: tuple[tuple[Count, Count], ...] = ()
    first_step: Count | None = None
    last_step: Count | None = None
    steps: Count = 0
    operations: tuple[Operation, ...] = ()
    device: DeviceUse | None = None
    stopped_ns: Count = 0
    trace: str | None = None
    flops: Flops | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(first > last for first, last in self.profiled):
            raise ValueError("a window of profiled steps ends before it begins")

    def by_phase(self) -> tuple[Operation, ...]:
        """The sums over the operations of each phase, the longest first."""
        return sums(replace(one, name=None) for one in self.operations)

    def launches_per_step(self, path: str) -> float | None:
        """Return how many kernels, copies and graphs a step enqueues in a phase, itself and not in
        phases inside it. None where that is not known."""
        if self.device is None or not self.steps:
            return None
        return next((one.launches for one in self.by_phase() if one.path == path), 0.0)


class _OperationOfModule(NamedTuple):
    """A row of a file of an earlier version, which has one for each module, of all steps."""

    name: str | None
    path: str | None
    module: str | None
    calls: Count
    host_ns: Count
    device_ns: Count | None
    launches: Count | None

    def per_step(self, steps: int) -> Operation:
        device_ns = None if self.device_ns is None else self.device_ns / steps
        launches = None if self.launches is None else self.launches / steps
        return Operation(
            self.name, self.path, self.calls / steps, self.host_ns / steps, device_ns, launches
        )


class _Document(Operations, frozen=True, kw_only=True):
    """The document as it is written: what is missing is not 0."""

    operations: tuple[Operation | _OperationOfModule, ...] = ()  # type: ignore[assignment]
    steps: Count
    stopped_ns: Count


def decode_operations(data: bytes) -> Operations:
    """Decode an OPERATIONS document.

    Raises:
        RunFileDamagedError: it does not fit.
    """
    document = decode_object(data, "OPERATIONS", _Document)
    rows = (
        one if isinstance(one, Operation) else one.per_step(max(1, document.steps))
        for one in document.operations
    )
    return Operations(**{**asdict(document), "operations": sums(rows)})


def sums(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Merge those with the same name and path, the longest first."""
    found: dict[tuple[str | None, str | None], Operation] = {}
    for one in operations:
        key = (one.name, one.path)
        found[key] = found[key] + one if key in found else one
    return tuple(
        sorted(found.values(), key=lambda one: one.host_ns + (one.device_ns or 0), reverse=True)
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
