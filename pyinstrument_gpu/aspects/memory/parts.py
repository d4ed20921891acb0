# SPDX-License-Identifier: Apache-2.0
"""What a report says of memory."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.aspects.memory.growth import FEWEST_POINTS
from pyinstrument_gpu.aspects.memory.section import (
    MemoryGrowth,
    MemoryUse,
    OutOfMemory,
)
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, counted, duration, printable, size, size_interval

_HEADERS = ("phase", "at begin", "at end", "peak", "left per step")


def out_of_memory(memory: MemoryUse | None) -> Iterator[Sentence]:
    """That, where and why a device had no memory left. Nothing if it had."""
    if memory is None or not memory.out_of_memory:
        return
    for event in memory.out_of_memory:
        yield Sentence(_event(event), "failure")
        if event.advice is not None:
            yield Sentence(event.advice)
    more = memory.out_of_memory_count - len(memory.out_of_memory)
    if more > 0:
        yield Sentence(f"... and {counted(more, 'more time')} in between", "warn")
    yield Sentence()


def memory_section(memory: MemoryUse | None) -> Iterator[Part]:
    """Memory by phase, and whether it grows. Nothing if no step was read."""
    if memory is None or not memory.steps or memory.peak_bytes is None:
        return
    whose = "of the process" if memory.device is None else f"on GPU {memory.device}"
    yield Sentence()
    yield Sentence(f"Memory {whose}, read in {counted(memory.steps, 'step')}", "title")
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
        yield from phase_table(_HEADERS, rows)
    yield Sentence(_totals(memory))
    if memory.growth is not None:
        yield Sentence(_growth(memory.growth), "alert")
    elif not memory.growth_is_known:
        yield Sentence(
            f"Whether memory grows is unknown: that takes {FEWEST_POINTS} steps that were read",
            "note",
        )
    else:
        yield Sentence("No growth from step to step is certain", "note")
    if any(not phase.peak_is_exact for phase in memory.phases):
        yield Sentence(
            ">=: in calls in which the run's peak did not rise, it may have been more", "note"
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
