# SPDX-License-Identifier: Apache-2.0
"""The section on memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pyinstrument_gpu.aspects.memory import data as model
from pyinstrument_gpu.aspects.memory import growth as analysis
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import size

_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True)
class PhaseMemory:
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
class MemoryGrowth:
    """By how much memory grows from step to step.

    Attributes:
        step_bytes: bytes per step.
        low_bytes, high_bytes: a 99 % interval of that.
        path: the phase that leaves it behind, if that can be told.
        is_outside_phases: whether steps leave it behind outside all phases.
    """

    step_bytes: float
    low_bytes: float
    high_bytes: float
    path: str | None
    is_outside_phases: bool


@dataclass(frozen=True)
class OutOfMemory:
    """A time at which a GPU had no memory left.

    Attributes:
        path: the innermost phase that was open.
        step: the index of the step that was open.
        module: the module that was running.
        time_ns: since the run began.
        request_bytes: what was asked for.
        free_bytes: what was free on the device.
        limit_bytes: what the process may have at most.
        allocated_bytes: what tensors occupied.
        reserved_bytes: what PyTorch held, for tensors or for later.
        advice: what may help, where these numbers say so.
    """

    path: str | None
    step: int | None
    module: str | None
    device: int
    time_ns: int | None
    request_bytes: int
    free_bytes: int
    limit_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    advice: str | None


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
        growth_is_known: false: too few steps were read to tell.
        growth: unknown: none is certain.
        phases: each before those inside it.
        out_of_memory_count: how often a GPU had no memory left.
        out_of_memory: the first of these times, and the last.
    """

    device: int | None
    steps: int
    peak_bytes: int | None
    reserved_peak_bytes: int | None
    reserved_bytes: int | None
    unused_bytes: int | None
    growth_is_known: bool
    growth: MemoryGrowth | None
    phases: tuple[PhaseMemory, ...]
    out_of_memory_count: int
    out_of_memory: tuple[OutOfMemory, ...]


def memory(run: Run) -> MemoryUse | None:
    found = run.memory
    if found is None or not (found.steps or found.out_of_memory):
        return None
    reserved_bytes = unused_bytes = None
    if len(found.points) and found.points["reserved_bytes"][-1] >= 0:
        reserved_bytes = int(found.points["reserved_bytes"][-1])
        unused_bytes = reserved_bytes - int(found.points["allocated_bytes"][-1])
    return MemoryUse(
        device=found.device,
        steps=found.steps,
        peak_bytes=found.peak_bytes,
        reserved_peak_bytes=found.reserved_peak_bytes,
        reserved_bytes=reserved_bytes,
        unused_bytes=unused_bytes,
        growth_is_known=len(found.points) >= analysis.FEWEST_POINTS,
        growth=_growth(found),
        phases=tuple(
            PhaseMemory(
                path,
                phase.begin_bytes,
                phase.end_bytes,
                phase.peak_bytes,
                phase.peak_is_exact,
                None if phase.left_bytes is None else phase.left_bytes.median,
            )
            for path, phase in _phases(run, found)
        ),
        out_of_memory_count=found.out_of_memory_count,
        out_of_memory=tuple(map(_out_of_memory, found.out_of_memory)),
    )


def _phases(run: Run, found: model.Memory) -> Iterator[tuple[str, model.PhaseMemory]]:
    known = [number for number, path in enumerate(run.paths) if path in found.phases]
    for number in in_tree_order(run.path_parents, known):
        path = run.paths[number]
        yield path, found.phases[path]


def _growth(found: model.Memory) -> MemoryGrowth | None:
    growth = analysis.memory_growth(found)
    if growth is None:
        return None
    slope = growth.per_step
    return MemoryGrowth(
        slope.slope,
        slope.low,
        slope.high,
        growth.path or None,
        growth.path == analysis.OUTSIDE,
    )


def _out_of_memory(event: model.OutOfMemory) -> OutOfMemory:
    facts = asdict(event)
    del facts["settings"]
    return OutOfMemory(**facts, advice=allocator_advice(event))


def allocator_advice(event: model.OutOfMemory) -> str | None:
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
