# SPDX-License-Identifier: Apache-2.0
"""Memory as an aspect of a run: how it is read, and what a report says of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from pyinstrument_gpu.analysis.advice import Finding, unpriced
from pyinstrument_gpu.aspects.memory.data import (
    HeldMemory,
    Memory,
    ModuleBytes,
    OutOfMemory,
    OutOfMemoryHolders,
    PhaseBytes,
    StepMemory,
    decode_memory,
)
from pyinstrument_gpu.aspects.memory.growth import FEWEST_POINTS, MemoryGrowth, memory_growth
from pyinstrument_gpu.aspects.memory.live import LiveMemory
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Curves, Part, Row, Sentence, curve_data, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    counted,
    duration,
    percent,
    printable,
    size,
    size_interval,
)

_EXPANDABLE = "expandable_segments:True"
_MIB = 1 << 20
_LOOK = "pyinstrument-gpu run --memory=exact PROGRAM"
_LEAST_GROWTH = 0.01
"""Of a GPU's memory at the begin: what it has to grow by over the steps that were read, to be what
a report says first."""
_LEAST_GROWTH_OF_PROCESS = 0.2
"""The same of the process, which may well keep some of its results."""


@dataclass(frozen=True)
class PhaseMemoryUse:
    """Memory around the calls of a phase, in the steps that were read.

    Attributes:
        begin_bytes, end_bytes: what was allocated when a call began and ended, on average.
        peak_bytes: the most that was allocated during a call, as far as it is known.
        peak_is_exact: false: in calls in which the run's peak did not rise it may have been more.
        left_bytes: what the phase left behind per step (median), phases inside included; below 0,
            what it freed.
    """

    path: str
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_is_exact: bool
    left_bytes: int | None


@dataclass(frozen=True)
class MemoryUse:
    """Memory in the steps that were read.

    Attributes:
        device: the GPU; unknown: it is the memory of the process that is resident.
        steps: how many were read.
        peak_bytes: the most that was allocated at any time.
        reserved_peak_bytes: the most that PyTorch held, for tensors or for later.
        reserved_bytes: what it held at the end of the last step that was read.
        unused_bytes: the part of that which no tensor occupied.
        allocation_retries: how often PyTorch gave memory back to the driver to get some, after the
            first step that was read.
        growth_is_known: false: too few steps were read to tell.
        growth: unknown: none is certain.
        phases: each before those inside it.
        out_of_memory_count: how often a GPU had no memory left.
        out_of_memory: the first of these times, and the last.
        held: who held memory around a backward pass; unknown: none was looked at.
    """

    device: int | None
    steps: int
    peak_bytes: int | None
    reserved_peak_bytes: int | None
    reserved_bytes: int | None
    unused_bytes: int | None
    allocation_retries: int | None
    growth_is_known: bool
    growth: MemoryGrowth | None
    phases: tuple[PhaseMemoryUse, ...]
    out_of_memory_count: int
    out_of_memory: tuple[OutOfMemory, ...]
    held: StepMemory | None = None


class MemoryAspect(DocumentAspect[Run, MemoryUse]):
    """Memory by phase and over steps, and when there was none left."""

    name = noted = "memory"
    block = BlockType.MEMORY
    section_type = MemoryUse | None
    live = LiveMemory()
    about = "by phase and kind, and whether it grows."

    def decode(self, data: bytes, found: Found) -> Memory:
        memory = decode_memory(data, found.tables.paths, found.numbering, found.anchor)
        found.notes += memory.notes
        return memory

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield retries as a cause. For how long one held a step up is not known: it frees memory,
        for which the host waits for the device. So it may have all that nothing else explains."""
        if run.memory is None or not run.memory.retried_steps:
            return
        steps = run.steps.closed
        steps = steps[np.isin(steps["index"], run.memory.retried_steps)]
        yield Cause(
            name="allocator_retry",
            words="likely the allocator, which had to give memory back to the driver",
            remedy=f"set PYTORCH_ALLOC_CONF={_EXPANDABLE}, or use less memory at a time",
            precedence=Precedence.REST,
            intervals=intervals_of(steps["begin_ns"], steps["end_ns"], steps["thread"]),
            known=steps["index"],
        )

    def section(self, run: Run) -> MemoryUse | None:
        found = run.memory
        if found is None or not (found.steps or found.out_of_memory):
            return None
        reserved_bytes = unused_bytes = None
        if len(found.points) and found.points["reserved_bytes"][-1] >= 0:
            reserved_bytes = int(found.points["reserved_bytes"][-1])
            unused_bytes = reserved_bytes - int(found.points["allocated_bytes"][-1])
        known = [number for number, path in enumerate(run.paths) if path in found.phases]
        growth = memory_growth(found)
        return MemoryUse(
            device=found.device,
            steps=found.steps,
            peak_bytes=found.peak_bytes,
            reserved_peak_bytes=found.reserved_peak_bytes,
            reserved_bytes=reserved_bytes,
            unused_bytes=unused_bytes,
            allocation_retries=found.allocation_retries,
            growth_is_known=growth is not None or len(found.points) >= FEWEST_POINTS,
            growth=growth,
            phases=tuple(
                PhaseMemoryUse(
                    phase.path,
                    phase.begin_bytes,
                    phase.end_bytes,
                    phase.peak_bytes,
                    phase.peak_is_exact,
                    None if phase.left_bytes is None else phase.left_bytes.median,
                )
                for number in in_tree_order(run.path_parents, known)
                for phase in [found.phases[run.paths[number]]]
            ),
            out_of_memory_count=found.out_of_memory_count,
            out_of_memory=tuple(found.out_of_memory),
            held=found.held,
        )

    def parts(self, memory: MemoryUse, document: ReportedRun) -> Iterable[Part]:
        """Memory by phase, and whether it grows. Nothing if no step was read."""
        if not memory.steps or memory.peak_bytes is None:
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
            yield Sentence(_growth_text(memory.growth), "alert")
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
        if memory.held is not None:
            yield from _held_parts(memory.held)

    def summary(self, memory: MemoryUse, document: ReportedRun) -> Iterable[Part]:
        if not memory.steps or memory.peak_bytes is None:
            return
        whose = "of the process" if memory.device is None else f"on GPU {memory.device}"
        text = f"Memory {whose}: peak {size(memory.peak_bytes)}"
        if memory.held is not None:
            text += _kinds_text(memory.held, memory.peak_bytes)
        if memory.growth is not None:
            yield Sentence(f"{text}. {_growth_text(memory.growth)}", "alert")
        else:
            yield Sentence(text)

    def first_parts(self, memory: MemoryUse) -> Iterable[Part]:
        """Yield that, where and why a device had no memory left. Nothing if it had."""
        if not memory.out_of_memory:
            return
        for event in memory.out_of_memory:
            yield Sentence(_event(event), "failure")
            advice = allocator_advice(event)
            if advice is not None:
                yield Sentence(advice)
            if event.holders is not None:
                yield from map(Sentence, _holders(event.holders, event.allocated_bytes))
            if event.snapshot is not None:
                yield Sentence(
                    f"The allocator's snapshot is in {printable(event.snapshot)} beside the run: "
                    "pytorch.org/memory_viz shows it",
                    "note",
                )
        more = memory.out_of_memory_count - len(memory.out_of_memory)
        if more > 0:
            yield Sentence(f"... and {counted(more, 'more time')} in between", "warn")
        yield Sentence()

    def failures(self, run: Run) -> Iterable[Finding]:
        """Yield where a device had no memory left, and where memory grows."""
        memory = run.memory
        if memory is None:
            return
        if memory.out_of_memory:
            event = memory.out_of_memory[-1]
            where = "outside all phases" if event.path is None else f"in {event.path}"
            why = (
                f"{size(event.request_bytes)} were asked for and {size(event.free_bytes)} of "
                f"{size(event.limit_bytes)} were free"
            )
            first = memory.out_of_memory[0]
            held = [] if first.holders is None else _kinds(first.holders, first.allocated_bytes)
            if held:
                when = "" if first is event else ", the first time,"
                why += f"; memory was held{when} by {', '.join(held[:_MOST_NAMED])}"
            yield unpriced(
                "failure",
                f"GPU {event.device} ran out of memory {where}",
                why,
                allocator_advice(event),
                _LOOK,
            )
        growth = memory_growth(memory)
        if growth is not None and _matters(growth, memory):
            interval = size_interval(growth.step_bytes, growth.low_bytes, growth.high_bytes)
            left = "; this run can't tell which phase leaks it"
            if growth.is_outside_phases:
                left = ", left outside phases"
            elif growth.path is not None:
                left = f", left behind by {growth.path}"
            yield unpriced(
                "failure",
                "memory of the process grows" if memory.device is None else "GPU memory grows",
                f"{size(growth.step_bytes)} per step{interval}{left}{_kept(run)}",
                None,
                _LOOK,
            )

    def curves(self, run: Run) -> Iterable[Curves]:
        """Memory at the end of the steps that were read; nothing without any."""
        if run.memory is None or not len(run.memory.points):
            return []
        points = run.memory.points
        reserved = points["reserved_bytes"]
        name = "resident" if run.memory.device is None else "allocated"
        values = {name: points["allocated_bytes"] / _MIB}
        if (reserved >= 0).any():
            values["reserved"] = np.where(reserved >= 0, reserved / _MIB, math.nan)
        return [
            Curves("Memory at the end of steps", curve_data("step", "MiB", points["step"], values))
        ]

    def unknown(self, run: Run) -> Iterator[str]:
        if run.memory is None:
            yield "Memory: the run has no reading of it."
        elif run.memory.held is None and run.memory.steps:
            yield "Memory by kind: no backward pass was inspected."


def allocator_advice(event: OutOfMemory) -> str | None:
    """Return what may help, if the numbers of this very event say so."""
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


_HEADERS = ("phase", "at begin", "at end", "peak", "left per step")


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


_MOST_NAMED = 3
_MOST_KINDS = 4
_LEAST_SHARE = 0.01
"""Of the peak: what has to be known of it to be worth a word."""
_OTHERS = "workspace and others"


def _kinds(holders: OutOfMemoryHolders, allocated_bytes: int | None) -> list[str]:
    """Return each kind that held memory when none was left, with its bytes, the largest first."""
    kinds = dict(holders.kinds)
    # Other threads may have freed what was counted.
    if allocated_bytes is not None and allocated_bytes >= holders.known_bytes:
        rest = _OTHERS if holders.unseen is not None else f"activations, {_OTHERS}"
        kinds[rest] = allocated_bytes - holders.known_bytes
    held = sorted(((held, name) for name, held in kinds.items() if held), reverse=True)
    return [f"{name} {size(held)}" for held, name in held]


def _holders(holders: OutOfMemoryHolders, allocated_bytes: int | None) -> Iterator[str]:
    """Sentences that say who held memory when there was none left."""
    kinds = _kinds(holders, allocated_bytes)
    if not kinds:
        yield "Modules, optimizers and autograd held no memory of it"
        return
    text = f"Memory was held by {', '.join(kinds)}"
    if holders.modules:
        text += f"; by module: {_most(holders.modules)}"
    yield text
    if holders.activation_modules:
        text = f"Activations, by module: {_most(holders.activation_modules)}"
        if holders.phases:
            text += f"; by phase: {_most(_phase_owners(holders.phases))}"
        yield text
    if holders.unseen:
        yield _unseen_text(holders.unseen)


def _most(owners: Iterable[ModuleBytes]) -> str:
    return ", ".join(
        f"{printable(one.name)} {size(one.bytes)}" for one in itertools.islice(owners, _MOST_NAMED)
    )


def _phase_owners(phases: Iterable[PhaseBytes]) -> Iterator[ModuleBytes]:
    return (ModuleBytes(one.path or "outside phases", one.bytes) for one in phases)


def _unseen_text(unseen: int) -> str:
    return (
        f"Activations may be larger: {counted(unseen, 'node')} of autograd did not show what they "
        "had saved"
    )


def _kinds_of(found: StepMemory) -> Iterator[tuple[str, int, int | None]]:
    """What was held of each kind, and what is allocated besides: as the pass began, and as it had
    ended; None: it raised an exception."""
    ended = {} if found.end is None else _with_others(found.end)
    for kind, begin_bytes in _with_others(found.begin).items():
        if begin_bytes or ended.get(kind) or kind == _OTHERS:
            yield kind, begin_bytes, ended.get(kind)


def _with_others(held: HeldMemory) -> dict[str, int]:
    """The kinds and what is allocated besides. Other threads may have freed what was counted."""
    if held.allocated_bytes is None:
        return held.kinds
    return {**held.kinds, _OTHERS: max(held.allocated_bytes - held.known_bytes, 0)}


def _held_parts(found: StepMemory) -> Iterator[Part]:
    """Who held memory around a backward pass."""
    yield Sentence()
    title = f"Memory by kind around the backward pass of step {found.step:,}"
    yield Sentence(f"{title}, inspected in {duration(found.cost_ns)}", "title")
    kinds = sorted(_kinds_of(found), key=lambda one: max(one[1], one[2] or 0), reverse=True)
    kinds.append(("together", *_totals_bytes(found)))
    rows = [
        Row(kind, [size(begin_bytes), UNKNOWN if end_bytes is None else size(end_bytes)])
        for kind, begin_bytes, end_bytes in kinds
    ]
    yield table(["kind", "as it began", "as it ended"], [rows[:-1], rows[-1:]])
    for text, owners in (
        ("Activations, by module", found.activation_modules),
        ("Activations, by phase", _phase_owners(found.phases)),
        ("All else, by module", found.most.modules),
    ):
        most = _most(owners)
        if most:
            yield Sentence(f"{text}: {most}")
    if found.unseen:
        yield Sentence(_unseen_text(found.unseen), "note")
    if not found.optimizers:
        yield Sentence("Optimizer state is unknown: no optimizer of torch made a step", "note")


def _totals_bytes(found: StepMemory) -> tuple[int, int | None]:
    """Of all kinds, as the pass began and as it had ended."""
    end = found.end
    ended = None if end is None else sum(_with_others(end).values())
    return sum(_with_others(found.begin).values()), ended


def _kinds_text(found: StepMemory, peak_bytes: int) -> str:
    """The kinds at the moment at which more is held, as shares of the peak."""
    begin_bytes, end_bytes = _totals_bytes(found)
    began = begin_bytes >= (end_bytes or 0)
    held = (found.begin if began or found.end is None else found.end).kinds
    if not _LEAST_SHARE * peak_bytes <= sum(held.values()) <= peak_bytes:
        return ""
    kinds = sorted(held.items(), key=itemgetter(1), reverse=True)[:_MOST_KINDS]
    kinds.append(("others", peak_bytes - sum(one for _, one in kinds)))
    shares = ", ".join(f"{kind} {percent(one, peak_bytes)}%" for kind, one in kinds if one)
    moment = "began" if began else "ended"
    return f", of which {shares} as the backward pass of step {found.step:,} {moment}"


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
    if memory.allocation_retries:
        text += (
            f". {counted(memory.allocation_retries, 'time')}, PyTorch gave its unused memory back "
            "to the driver to get what it needed, and the host waited for the GPU"
        )
    return text


def _growth_text(growth: MemoryGrowth) -> str:
    sizes_bytes = growth.step_bytes, growth.low_bytes, growth.high_bytes
    of_what = "from one reading to the next" if growth.is_of_few else "99 % interval"
    interval = size_interval(*sizes_bytes, f", {of_what}")
    text = f"Memory grows by {size(growth.step_bytes)} per step{interval}"
    if growth.is_outside_phases:
        return f"{text}, left behind in steps outside all phases"
    if growth.path is None:
        return f"{text}; this run can't tell which phase leaks it"
    return f"{text}, left behind by {printable(growth.path)}"


def _kept(run: Run) -> str:
    """Return which lines of the program keep something of each step, behind a semicolon."""
    retained = next(run.setup_calls.of_kind("retained"), None)
    kept = [
        f"{printable(one.call)} ({run.name_of_line(one.place)})"
        for one in run.setup_calls.of_kind("kept")
    ]
    clauses = []
    if kept:
        clauses.append(f"the loop adds to {' and '.join(kept)}, perhaps tensors with their graph")
    if retained is not None:
        line = run.name_of_line(retained.place)
        clauses.append(
            f"{retained.call} at {line} keeps what was saved for it while the graph lives"
        )
    return "".join(f"; {clause}" for clause in clauses)


def _signed(median: int) -> str:
    return f"+{size(median)}" if median > 0 else size(median)


def _matters(growth: MemoryGrowth, memory: Memory) -> bool:
    """Return whether memory has grown for certain by as much as comes first: also the recording
    itself takes a little more memory of the process with each step."""
    first, last = memory.points[0], memory.points[-1]
    grown_bytes = growth.low_bytes * (int(last["step"]) - int(first["step"]))
    least = _LEAST_GROWTH_OF_PROCESS if memory.device is None else _LEAST_GROWTH
    return bool(grown_bytes >= least * first["allocated_bytes"])


ASPECT = MemoryAspect()
