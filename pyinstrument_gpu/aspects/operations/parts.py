# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what torch's profiler has seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pyinstrument_gpu.aspects.operations.section import DeviceIdle, Operations, OperationTimes
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    counted,
    duration,
    percent,
    printable,
    share,
)

_MOST_ROWS = 15
_NO_PHASE = "(no phase)"
_NO_MODULE = "(no module)"


def operations_section(operations: Operations | None) -> Iterator[Part]:
    """Operations, modules and phases, the longest first. Nothing if no steps were profiled."""
    if operations is None:
        return
    longest_ns = max(one.host_ns + (one.device_ns or 0) for one in operations.operations)
    unit = Unit.fitting(longest_ns)
    yield Sentence()
    yield Sentence(f"Operations ({_which(operations)}): {unit.name} per step", "title")
    has_device = operations.device is not None
    columns = ["calls", "host", "% host"]
    if has_device:
        columns += ["launches", "device", "% device"]
    whole = _sum(operations.phases, operations.steps)

    def cells(one: OperationTimes) -> list[str]:
        texts = [_count(one.calls), unit.text(one.host_ns), percent(one.host_ns, whole.host_ns)]
        if has_device:
            texts += [
                _count(one.launches),
                unit.text(one.device_ns),
                percent(one.device_ns or 0, whole.device_ns or 0),
            ]
        return texts

    by_operation = [
        Row(one.name or "(others)", cells(one), note=one.path or _NO_PHASE)
        for one in operations.operations
    ]
    by_module = [
        Row(one.module or _NO_MODULE, cells(one), note=one.path or _NO_PHASE)
        for one in operations.modules
    ]
    by_path = [Row(one.path or _NO_PHASE, cells(one)) for one in operations.phases]
    yield from _table("operation", columns, by_operation)
    if operations.modules_unknown is not None:
        yield Sentence(f"Modules are unknown: {printable(operations.modules_unknown)}")
    elif by_module:
        yield from _table("module", columns, by_module)
    yield from _table("phase", columns, by_path, Row("all", cells(whole), emphasis="bold"))
    yield Sentence()
    yield Sentence(
        "host: time of an operation without those that it called, on all threads; device: time of "
        "the kernels and copies that it launched"
        if has_device
        else "host: time of an operation without those that it called, on all threads. No work of "
        "a device was seen"
    )
    if operations.device is not None:
        yield from _device(operations.device)
    yield from _cost(operations)
    if operations.trace is not None:
        yield Sentence(f"Trace: {printable(operations.trace)}")


def _which(operations: Operations) -> str:
    if operations.first_step is None or operations.last_step is None:
        return "within a step"
    if operations.first_step == operations.last_step:
        return f"profiled step {operations.first_step}"
    return f"profiled steps {operations.first_step}-{operations.last_step}"


def _sum(phases: Sequence[OperationTimes], steps: int) -> OperationTimes:
    def sum_of(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) if len(known) == len(phases) else None

    def whole(count: float | None) -> float | None:
        """A mean of whole numbers, without what rounding has added."""
        return None if count is None else round(count * steps) / steps

    return OperationTimes(
        name=None,
        module=None,
        path=None,
        calls=whole(sum_of(one.calls for one in phases)) or 0,
        host_ns=sum_of(one.host_ns for one in phases) or 0,
        launches=whole(sum_of(one.launches for one in phases)),
        device_ns=sum_of(one.device_ns for one in phases),
    )


def _table(
    name: str, columns: list[str], rows: list[Row], last: Row | None = None
) -> Iterator[Part]:
    yield Sentence()
    shown = rows[:_MOST_ROWS]
    yield table([name, *columns], [shown, [] if last is None else [last]])
    if len(rows) > len(shown):
        yield Sentence(f"... and {counted(len(rows) - len(shown), f'more {name}')}", "warn")


def _count(per_step: float | None) -> str:
    if per_step is None:
        return UNKNOWN
    return f"{per_step:,.0f}" if per_step == round(per_step) else f"{per_step:,.2f}"


def _device(device: DeviceIdle) -> Iterator[Sentence]:
    gaps = sum(one.count for one in device.gaps)
    which = "Devices" if device.devices > 1 else "Device"
    yield Sentence(
        f"{which} idle: {duration(device.idle_ns)} of {duration(device.elapsed_ns)}"
        f"{share(device.idle_ns, device.elapsed_ns)}, in {counted(gaps, 'gap')}"
    )
    for one in device.gaps[:_MOST_ROWS]:
        yield Sentence(
            f"  before work of {printable(one.path or _NO_PHASE)}: {duration(one.total_ns)} in "
            f"{counted(one.count, 'gap')}, the longest {duration(one.longest_ns)}"
        )


def _cost(operations: Operations) -> Iterator[Sentence]:
    if operations.step_ns is not None:
        said = [f"{duration(operations.step_ns)} profiled"]
        said += _others(operations.step_before_ns, "before")
        said += _others(operations.step_after_ns, "after")
        yield Sentence(
            f"A step took {', '.join(said)}. Profiled steps are slower, above all those of many "
            "short operations"
        )
    yield Sentence(
        f"Training stood still for {duration(operations.stopped_ns)} to start and end the "
        "profiler, between steps"
    )


def _others(time_ns: float | None, when: str) -> Iterable[str]:
    return [] if time_ns is None else [f"{duration(time_ns)} {when}"]
