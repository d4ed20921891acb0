# SPDX-License-Identifier: Apache-2.0
"""What a report says of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.analysis.memory_growth import (
    FEWEST_POINTS,
    OUTSIDE,
    MemoryGrowth,
    memory_growth,
)
from pyinstrument_gpu.model.memory import Memory, OutOfMemory
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import phase_table
from pyinstrument_gpu.report.table import UNKNOWN, Row, counted, duration, printable, size

_HEADERS = ("phase", "at begin", "at end", "peak", "left per step")
_EXPANDABLE = "expandable_segments:True"


def out_of_memory(run: RunData) -> Iterator[Text]:
    """That, where and why a device had no memory left. Nothing if it had."""
    memory = run.memory
    if memory is None or not memory.out_of_memory:
        return
    for event in memory.out_of_memory:
        yield Text(_event(event), "bold red")
        advice = allocator_advice(event)
        if advice is not None:
            yield Text(advice)
    more = memory.out_of_memory_count - len(memory.out_of_memory)
    if more > 0:
        yield Text(f"... and {counted(more, 'more time')} in between", "yellow")
    yield Text()


def memory_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """Memory by phase, and whether it grows. Nothing if no step was read."""
    memory = run.memory
    if memory is None or not memory.steps or memory.peak_bytes is None:
        return
    whose = "of the process" if memory.device is None else f"on GPU {memory.device}"
    yield Text()
    yield Text(f"Memory {whose}, read in {counted(memory.steps, 'step')}", "bold")
    names = {path: number for number, path in enumerate(run.paths)}
    rows = {}
    for path, phase in memory.phases.items():
        peak = size(phase.peak_bytes)
        cells = [
            size(phase.begin_bytes),
            size(phase.end_bytes),
            peak if phase.peak_is_exact else f">= {peak}",
            UNKNOWN if phase.left_bytes is None else _signed(phase.left_bytes.median),
        ]
        if path in names:
            rows[names[path]] = Row("", cells)
    if rows:
        yield from phase_table(run, _HEADERS, rows, width)
    yield Text(_totals(memory))
    growth = memory_growth(memory)
    if growth is not None:
        yield Text(_growth(growth), "bold yellow")
    elif len(memory.points) < FEWEST_POINTS:
        yield Text(
            f"Whether memory grows is unknown: that takes {FEWEST_POINTS} steps that were read",
            "dim",
        )
    else:
        yield Text("No growth from step to step is certain", "dim")
    if any(not phase.peak_is_exact for phase in memory.phases.values()):
        yield Text(
            ">=: in calls in which the run's peak did not rise, it may have been more", "dim"
        )


def memory_facts(run: RunData) -> dict[str, Any] | None:
    """The numbers of the section, for JSON; None if memory was not read."""
    memory = run.memory
    if memory is None:
        return None
    growth = memory_growth(memory)
    return {
        "device": memory.device,
        "steps_read": memory.steps,
        "peak_bytes": memory.peak_bytes,
        "reserved_peak_bytes": memory.reserved_peak_bytes,
        "unused_reserved_bytes": unused_reserved_bytes(memory),
        "phases": [{"path": path, **asdict(phase)} for path, phase in memory.phases.items()],
        "growth": None
        if growth is None
        else {
            "bytes_per_step": growth.per_step.slope,
            "low": growth.per_step.low,
            "high": growth.per_step.high,
            "phase": growth.path or None,
            "is_outside_phases": growth.path == OUTSIDE,
        },
        "out_of_memory_count": memory.out_of_memory_count,
        "out_of_memory": [
            {**asdict(event), "advice": allocator_advice(event)} for event in memory.out_of_memory
        ],
    }


def unused_reserved_bytes(memory: Memory) -> int | None:
    """What the allocator held and no tensor occupied at the end of the last step that was read;
    None if that is not known."""
    if not len(memory.points) or memory.points["reserved_bytes"][-1] < 0:
        return None
    last = memory.points[-1]
    return int(last["reserved_bytes"] - last["allocated_bytes"])


def allocator_advice(event: OutOfMemory) -> str | None:
    """What may help, if the numbers of this very event say so."""
    allocated, reserved = event.allocated_bytes, event.reserved_bytes
    if allocated is None or reserved is None or reserved - allocated < event.request_bytes:
        return None
    if event.settings is not None and _EXPANDABLE in event.settings.replace(" ", ""):
        return None
    return (
        f"{size(reserved - allocated)} were reserved and not allocated, which is more than was "
        "asked for, but in pieces that do not fit: try PYTORCH_ALLOC_CONF="
        f"{_EXPANDABLE} in the environment"
    )


def _event(event: OutOfMemory) -> str:
    where = "outside all phases" if event.path is None else f"in {printable(event.path)}"
    if event.module is not None:
        where += f", module {printable(event.module)}"
    step = "outside steps" if event.step is None else f"in step {event.step:,}"
    when = "" if event.time_ns is None else f" at {duration(event.time_ns)}"
    text = (
        f"GPU {event.device} ran out of memory {where}, {step}{when}: {size(event.request_bytes)} "
        f"were asked for and {size(event.free_bytes)} of {size(event.limit_bytes)} were free"
    )
    if event.allocated_bytes is not None and event.reserved_bytes is not None:
        text += (
            f"; tensors occupied {size(event.allocated_bytes)} of the "
            f"{size(event.reserved_bytes)} that PyTorch had reserved"
        )
    return text


def _totals(memory: Memory) -> str:
    assert memory.peak_bytes is not None
    text = f"Peak {size(memory.peak_bytes)}"
    if memory.reserved_peak_bytes is not None:
        text += f", reserved up to {size(memory.reserved_peak_bytes)}"
    unused = unused_reserved_bytes(memory)
    if unused is not None:
        reserved = int(memory.points["reserved_bytes"][-1])
        text += f"; at the end of the last step read {size(unused)} of {size(reserved)} reserved"
        text += " were not allocated"
    return text


def _growth(growth: MemoryGrowth) -> str:
    slope = growth.per_step
    text = (
        f"Memory grows by {size(slope.slope)} per step ({size(slope.low)} to {size(slope.high)}, "
        "99 % interval)"
    )
    if growth.path is None:
        return f"{text}; which phase leaves it behind can't be told"
    if growth.path == OUTSIDE:
        return f"{text}, left behind in steps outside all phases"
    return f"{text}, left behind by {printable(growth.path)}"


def _signed(median: int) -> str:
    return f"+{size(median)}" if median > 0 else size(median)
