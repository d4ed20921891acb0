# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what torch's profiler has seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.analysis.profiled_steps import profiled_steps
from pyinstrument_gpu.model.operations import DeviceUse, Operation, Operations
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import (
    UNKNOWN,
    Row,
    Unit,
    counted,
    duration,
    percent,
    printable,
    share,
    table,
)

_MOST_ROWS = 15
_NO_PHASE = "(no phase)"
_NO_MODULE = "(no module)"


def operations_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """Operations, modules and phases, the longest first. Nothing if no steps were profiled."""
    operations = run.operations
    if operations is None or not operations.operations:
        return
    steps = max(1, operations.steps)
    longest_ns = max(one.host_ns + (one.device_ns or 0) for one in operations.operations)
    unit = Unit.fitting(longest_ns / steps)
    yield Text()
    yield Text(f"Operations ({_which(operations)}): {unit.name} per step", "bold")
    has_device = operations.device is not None
    columns = ["calls", "host", "% host"]
    if has_device:
        columns += ["launches", "device", "% device"]

    def cells(one: Operation) -> list[str]:
        texts = [
            _per_step(one.calls, steps),
            unit.text(one.host_ns / steps),
            percent(one.host_ns, whole.host_ns),
        ]
        if has_device:
            texts += [
                _per_step(one.launches, steps),
                unit.text(None if one.device_ns is None else one.device_ns / steps),
                percent(one.device_ns or 0, whole.device_ns or 0),
            ]
        return texts

    whole = sum(operations.operations[1:], operations.operations[0])
    by_operation = [
        Row(name or "(others)", cells(one), note=path or _NO_PHASE)
        for (name, path), one in operations.by_operation().items()
    ]
    by_module = [
        Row(module or _NO_MODULE, cells(one), note=path or _NO_PHASE)
        for (module, path), one in operations.by_module().items()
    ]
    by_path = [Row(path or _NO_PHASE, cells(one)) for path, one in operations.by_path().items()]
    yield from _table("operation", columns, by_operation, width)
    if operations.modules_unknown is not None:
        yield Text(f"Modules are unknown: {printable(operations.modules_unknown)}")
    elif any(one.module is not None for one in operations.operations):
        yield from _table("module", columns, by_module, width)
    yield from _table("phase", columns, by_path, width, Row("all", cells(whole), style="bold"))
    yield Text()
    yield Text(
        "host: time of an operation without those that it called, on all threads; device: time of "
        "the kernels and copies that it launched"
        if has_device
        else "host: time of an operation without those that it called, on all threads. No work of "
        "a device was seen"
    )
    if operations.device is not None:
        yield from _device(operations.device)
    yield from _cost(run, operations)
    if operations.trace is not None:
        yield Text(f"Trace: {printable(operations.trace)}")


def _which(operations: Operations) -> str:
    if operations.first_step is None or operations.last_step is None:
        return "within a step"
    if operations.first_step == operations.last_step:
        return f"profiled step {operations.first_step}"
    return f"profiled steps {operations.first_step}-{operations.last_step}"


def _table(
    name: str, columns: list[str], rows: list[Row], width: int, last: Row | None = None
) -> Iterator[Text | Table]:
    yield Text()
    shown = rows[:_MOST_ROWS]
    yield table([name, *columns], [shown, [] if last is None else [last]], width)
    if len(rows) > len(shown):
        yield Text(f"... and {counted(len(rows) - len(shown), f'more {name}')}", "yellow")


def _per_step(count: int | None, steps: int) -> str:
    if count is None:
        return UNKNOWN
    per_step = count / steps
    return f"{per_step:,.0f}" if per_step == round(per_step) else f"{per_step:,.2f}"


def _device(device: DeviceUse) -> Iterator[Text]:
    gaps = sum(one.count for one in device.gaps)
    which = "Devices" if device.devices > 1 else "Device"
    yield Text(
        f"{which} idle: {duration(device.idle_ns)} of {duration(device.elapsed_ns)}"
        f"{share(device.idle_ns, device.elapsed_ns)}, in {counted(gaps, 'gap')}"
    )
    for one in device.gaps[:_MOST_ROWS]:
        yield Text(
            f"  before work of {printable(one.path or _NO_PHASE)}: {duration(one.total_ns)} in "
            f"{counted(one.count, 'gap')}, the longest {duration(one.longest_ns)}"
        )


def _cost(run: RunData, operations: Operations) -> Iterator[Text]:
    times = profiled_steps(run)
    if times is not None and times.profiled_ns is not None:
        said = [f"{duration(times.profiled_ns)} profiled"]
        said += _others(times.before_ns, "before")
        said += _others(times.after_ns, "after")
        yield Text(
            f"A step took {', '.join(said)}. Profiled steps are slower, above all those of many "
            "short operations"
        )
    yield Text(
        f"Training stood still for {duration(operations.stopped_ns)} to start and end the "
        "profiler, between steps"
    )


def _others(time_ns: float | None, when: str) -> Iterable[str]:
    return [] if time_ns is None else [f"{duration(time_ns)} {when}"]
