# SPDX-License-Identifier: Apache-2.0
"""What a report says of memory."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.analysis.memory_growth import FEWEST_POINTS
from pyinstrument_gpu.document.memory import (
    MemoryGrowth,
    MemoryUse,
    OutOfMemory,
)
from pyinstrument_gpu.document.words import size_interval
from pyinstrument_gpu.report.phase_tree import phase_table
from pyinstrument_gpu.report.table import UNKNOWN, Row, counted, duration, printable, size

_HEADERS = ("phase", "at begin", "at end", "peak", "left per step")


def out_of_memory(memory: MemoryUse | None) -> Iterator[Text]:
    """That, where and why a device had no memory left. Nothing if it had."""
    if memory is None or not memory.out_of_memory:
        return
    for event in memory.out_of_memory:
        yield Text(_event(event), "bold red")
        if event.advice is not None:
            yield Text(event.advice)
    more = memory.out_of_memory_count - len(memory.out_of_memory)
    if more > 0:
        yield Text(f"... and {counted(more, 'more time')} in between", "yellow")
    yield Text()


def memory_section(memory: MemoryUse | None, width: int) -> Iterator[Text | Table]:
    """Memory by phase, and whether it grows. Nothing if no step was read."""
    if memory is None or not memory.steps or memory.peak_bytes is None:
        return
    whose = "of the process" if memory.device is None else f"on GPU {memory.device}"
    yield Text()
    yield Text(f"Memory {whose}, read in {counted(memory.steps, 'step')}", "bold")
    rows = {}
    for phase in memory.phases:
        peak = size(phase.peak_bytes)
        cells = [
            size(phase.begin_bytes),
            size(phase.end_bytes),
            peak if phase.peak_is_exact else f">= {peak}",
            UNKNOWN if phase.left_bytes is None else _signed(phase.left_bytes),
        ]
        rows[phase.path] = Row("", cells)
    if rows:
        yield from phase_table(_HEADERS, rows, width)
    yield Text(_totals(memory))
    if memory.growth is not None:
        yield Text(_growth(memory.growth), "bold yellow")
    elif not memory.growth_is_known:
        yield Text(
            f"Whether memory grows is unknown: that takes {FEWEST_POINTS} steps that were read",
            "dim",
        )
    else:
        yield Text("No growth from step to step is certain", "dim")
    if any(not phase.peak_is_exact for phase in memory.phases):
        yield Text(
            ">=: in calls in which the run's peak did not rise, it may have been more", "dim"
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


def _totals(memory: MemoryUse) -> str:
    assert memory.peak_bytes is not None
    text = f"Peak {size(memory.peak_bytes)}"
    if memory.reserved_peak_bytes is not None:
        text += f", reserved up to {size(memory.reserved_peak_bytes)}"
    if memory.unused_bytes is not None and memory.reserved_bytes is not None:
        text += (
            f"; at the end of the last step read {size(memory.unused_bytes)} of "
            f"{size(memory.reserved_bytes)} reserved were not allocated"
        )
    return text


def _growth(growth: MemoryGrowth) -> str:
    sizes_bytes = growth.step_bytes, growth.low_bytes, growth.high_bytes
    interval = size_interval(*sizes_bytes, ", 99 % interval")
    text = f"Memory grows by {size(growth.step_bytes)} per step{interval}"
    if growth.is_outside_phases:
        return f"{text}, left behind in steps outside all phases"
    if growth.path is None:
        return f"{text}; which phase leaves it behind can't be told"
    return f"{text}, left behind by {printable(growth.path)}"


def _signed(median: int) -> str:
    return f"+{size(median)}" if median > 0 else size(median)
