# SPDX-License-Identifier: Apache-2.0
"""The findings that matter: what one should know of a run first, and what to do about it; and what
else guides advise."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, EDIT_SHARE, TIMELINE, Finding, unpriced
from pyinstrument_gpu.analysis.rules import findings as guides_of
from pyinstrument_gpu.analysis.rules import is_nothing_worth_an_edit
from pyinstrument_gpu.analysis.rules.case import Guidance
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.aspects.memory.growth import OUTSIDE, MemoryGrowth, memory_growth
from pyinstrument_gpu.aspects.memory.section import allocator_advice
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import size, size_interval

_PAGE = "pyinstrument-gpu report RUN --html"
_MEMORY = "pyinstrument-gpu run --memory=exact PROGRAM"
_LEAST_GROWTH = 0.01
"""Of the memory at the begin: what it has to grow by over the steps that were read."""


def findings(run: Run, file: str | None) -> tuple[Finding, ...]:
    """What went wrong, then what is worth an edit for certain, then what may be."""
    found = [*_failures(run), *_worth_an_edit(run)]
    if file is not None:
        named = f" {shlex.quote(file)}"
        found = [replace(one, look=one.look and one.look.replace(" RUN", named)) for one in found]
    return tuple(sorted(found, key=lambda one: one.kind != "failure" and 2 - one.is_certain))


def _failures(run: Run) -> Iterator[Finding]:
    memory = run.memory
    if memory is not None and memory.out_of_memory:
        event = memory.out_of_memory[-1]
        where = "outside all phases" if event.path is None else f"in {event.path}"
        yield unpriced(
            "failure",
            f"GPU {event.device} ran out of memory {where}",
            f"{size(event.request_bytes)} were asked for and {size(event.free_bytes)} of "
            f"{size(event.limit_bytes)} were free",
            allocator_advice(event),
            _MEMORY,
        )
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if len(readings) and not math.isfinite(readings["value"][-1]):
            last = readings[-1]
            read = "" if last["step"] < 0 else f", read in step {last['step']:,},"
            evidence = f"its last value{read} is {last['value']}"
            yield unpriced("failure", f"metric {name}", evidence, None, _PAGE)
    growth = None if memory is None else memory_growth(memory)
    if memory is not None and growth is not None and _matters(growth, memory):
        slope = growth.per_step
        by = {None: "which phase leaves it behind can't be told", OUTSIDE: "left outside phases"}
        interval = size_interval(slope.slope, slope.low, slope.high)
        left = by.get(growth.path, f"left behind by {growth.path}")
        yield unpriced(
            "failure",
            "memory of the process grows" if memory.device is None else "GPU memory grows",
            f"{size(slope.slope)} per step{interval}, {left}",
            None,
            _MEMORY,
        )


def _matters(growth: MemoryGrowth, memory: Memory) -> bool:
    """Whether memory has grown for certain by as much as is worth a word: also the recording itself
    takes a little more memory of the process with each step."""
    first, last = memory.points[0], memory.points[-1]
    grown_bytes = growth.per_step.low * (int(last["step"]) - int(first["step"]))
    return bool(grown_bytes >= _LEAST_GROWTH * first["allocated_bytes"])


def _worth_an_edit(run: Run) -> Iterator[Finding]:
    """Advice and doubts in the order of the analysis, then what guides advise. A piece of their
    advice with the very interval of another finding is about the same time, and not repeated."""
    about = analysis.of(run)
    given = about.advice if about.knows_waits else []
    given = [*given, *(one for one in about.doubts if about.knows_waits or one.low_ns is None)]
    yield from given
    intervals = {(one.low_ns, one.high_ns, one.of) for one in given}
    for guide in guides_of(run):
        worth = guide.worth
        if worth is None or (worth.low_ns, worth.high_ns, worth.of) in intervals:
            continue
        if worth.low_ns >= EDIT_SHARE * worth.of_ns or worth.high_share >= DOUBT_SHARE:
            yield Finding(
                kind="guide",
                about=guide.advice,
                low_ns=worth.low_ns,
                high_ns=worth.high_ns,
                likely_ns=None,
                of_ns=worth.of_ns,
                of=worth.of,
                promised=guide.promised,
                evidence=guide.evidence,
                edit=guide.edit,
                look=TIMELINE,
            )


@dataclass(frozen=True)
class Guides:
    """What applies to the run.

    Attributes:
        rows: what is not among the findings, the largest worth first.
        nothing_worth_an_edit: whether no saving and no advice reaches 1 % of the time.
    """

    rows: tuple[Guidance, ...]
    nothing_worth_an_edit: bool


def guides(run: Run, told: Collection[str]) -> Guides | None:
    """`told` is the advice that is among the findings."""
    found = guides_of(run)
    nothing = is_nothing_worth_an_edit(run, found)
    if not found and not nothing:
        return None
    return Guides(tuple(one for one in found if one.advice not in told), nothing)
