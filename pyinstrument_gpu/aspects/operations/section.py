# SPDX-License-Identifier: Apache-2.0
"""The section on what torch's profiler has seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyinstrument_gpu.analysis.step_times import profiled_steps
from pyinstrument_gpu.aspects.operations.data import DeviceGaps, DeviceUse, Operation
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class OperationTimes:
    """Calls of one operation, or of all in one module or phase: means per profiled step.

    Attributes:
        name: the operation, as torch calls it; unknown of those too many to be told apart.
        module: the module in whose forward or backward pass it was called, with `*` for the index
            in a list; unknown outside of all.
        path: the phase; unknown outside of all.
        calls: how often it was called.
        host_ns: its time on the host without that of the operations that it called, on all threads.
        launches: how many kernels, copies and graphs it enqueued itself.
        device_ns: the time of those kernels and copies.
    """

    name: str | None
    module: str | None
    path: str | None
    calls: float
    host_ns: float
    launches: float | None
    device_ns: float | None


@dataclass(frozen=True)
class DeviceIdle:
    """How long devices had nothing to do between the first and the last work that was seen of each.

    Attributes:
        devices: how many.
        idle_ns, elapsed_ns: over all devices, in the whole window.
        gaps: by phase, the longest sum first.
    """

    devices: int
    idle_ns: int
    elapsed_ns: int
    gaps: tuple[DeviceGaps, ...]


@dataclass(frozen=True)
class Operations:
    """What torch's profiler has seen in some steps.

    Attributes:
        first_step, last_step: which steps; unknown: a part of one.
        steps: how many of them were whole, by which sums were divided.
        operations, modules, phases: the same calls by operation and phase, by module and phase, and
            by phase alone, each with the longest first.
        modules_unknown: why there are no modules.
        device: unknown: no work of a device was seen.
        step_ns: the median time of a profiled step.
        step_before_ns, step_after_ns: of steps before and after, which were not slowed.
        stopped_ns: for how long training stood still to start and end the profiler.
        trace: the file of the kept trace.
    """

    first_step: int | None
    last_step: int | None
    steps: int
    operations: tuple[OperationTimes, ...]
    modules: tuple[OperationTimes, ...]
    modules_unknown: str | None
    phases: tuple[OperationTimes, ...]
    device: DeviceIdle | None
    step_ns: float | None
    step_before_ns: float | None
    step_after_ns: float | None
    stopped_ns: int
    trace: str | None


def operations(run: Run) -> Operations | None:
    """None if no steps were profiled."""
    found = run.operations
    if found is None or not found.operations:
        return None
    steps = max(1, found.steps)
    times = profiled_steps(run)
    has_modules = any(one.module is not None for one in found.operations)
    return Operations(
        first_step=found.first_step,
        last_step=found.last_step,
        steps=steps,
        operations=_per_step(found.by_operation().values(), steps),
        modules=_per_step(found.by_module().values() if has_modules else (), steps),
        modules_unknown=found.modules_unknown,
        phases=_per_step(found.by_path().values(), steps),
        device=None if found.device is None else _idle(found.device),
        step_ns=None if times is None else times.profiled_ns,
        step_before_ns=None if times is None else times.before_ns,
        step_after_ns=None if times is None else times.after_ns,
        stopped_ns=found.stopped_ns,
        trace=found.trace,
    )


def _per_step(sums: Iterable[Operation], steps: int) -> tuple[OperationTimes, ...]:
    return tuple(
        OperationTimes(
            name=one.name,
            module=one.module,
            path=one.path,
            calls=one.calls / steps,
            host_ns=one.host_ns / steps,
            launches=None if one.launches is None else one.launches / steps,
            device_ns=None if one.device_ns is None else one.device_ns / steps,
        )
        for one in sums
    )


def _idle(device: DeviceUse) -> DeviceIdle:
    return DeviceIdle(device.devices, device.idle_ns, device.elapsed_ns, device.gaps)
