# SPDX-License-Identifier: Apache-2.0
"""The aspect of what torch.profiler has seen: how it is read, and what a report says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.operations.data import (
    DeviceUse,
    Operation,
    Operations,
    decode_operations,
)
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import ProfiledSteps
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    capitalised,
    counted,
    duration,
    percent,
    printable,
    share,
)

NEIGHBOURS = 20
"""Of so many steps before and after the profiled ones the median is taken, fewer where there are
no more."""
MIN_NEIGHBOURS = 3


@dataclass(frozen=True)
class OperationsSection:
    """The operations that torch's profiler has seen in some steps.

    Attributes:
        first_step, last_step: which steps; unknown: a part of one.
        steps: how many of them were whole, by which sums were divided.
        operations, phases: the same calls by operation and phase, and by phase alone, each with the
            longest first.
        device: unknown: no work of a device was seen.
        step_ns: the median time of a profiled step.
        step_before_ns, step_after_ns: of steps before and after, which were not slowed.
        stopped_ns: for how long training stood still to start and end the profiler.
        trace: the file of the kept trace.
    """

    first_step: int | None
    last_step: int | None
    steps: int
    operations: tuple[Operation, ...]
    phases: tuple[Operation, ...]
    device: DeviceUse | None
    step_ns: float | None
    step_before_ns: float | None
    step_after_ns: float | None
    stopped_ns: int
    trace: str | None


class OperationsAspect(Aspect[Run, OperationsSection]):
    """The operations in the steps that were profiled."""

    name = "operations"
    comes_first = True
    section_type = OperationsSection | None
    about = "what torch's profiler has seen."
    in_preview = False
    most_rows = 5

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"operations": given.get("operations")}

    def profiled_steps(self, given: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
        operations = given.get("operations")
        return () if operations is None else operations.profiled

    def read(self, found: Found) -> dict[str, Any]:
        operations = found.document(BlockType.OPERATIONS, "what was profiled", decode_operations)
        if operations is not None:
            found.notes += operations.notes
        known = ProfiledSteps(() if operations is None else operations.profiled)
        profiled = known.joined_by(found.profiled_steps).ranges
        if operations is None and profiled:
            found.notes.append(
                "what torch.profiler saw is missing; the steps that it slowed are counted apart"
            )
        if profiled:
            operations = replace(operations or Operations(), profiled=profiled)
        return {"operations": operations}

    def section(self, run: Run) -> OperationsSection | None:
        """Return the section; None if no steps were profiled."""
        found = run.operations
        if found is None or not found.operations:
            return None
        step_ns, before_ns, after_ns = _times_around(run)
        return OperationsSection(
            first_step=found.first_step,
            last_step=found.last_step,
            steps=max(1, found.steps),
            operations=found.operations,
            phases=found.by_phase(),
            device=found.device,
            step_ns=step_ns,
            step_before_ns=before_ns,
            step_after_ns=after_ns,
            stopped_ns=found.stopped_ns,
            trace=found.trace,
        )

    def summary(self, operations: OperationsSection, document: ReportedRun) -> Iterable[Part]:
        longest = max(operations.operations, key=lambda one: one.device_ns or one.host_ns)
        time_ns = longest.device_ns or longest.host_ns
        yield Sentence(
            printable(
                f"{capitalised(_which(operations))}: most time in {longest.name or 'others'}, "
                f"{duration(time_ns)} per step"
            )
        )

    def parts(self, operations: OperationsSection, document: ReportedRun) -> Iterable[Part]:
        """Operations and phases, the longest first."""
        longest_ns = max(one.host_ns + (one.device_ns or 0) for one in operations.operations)
        unit = Unit.fitting(longest_ns)
        yield Sentence()
        yield Sentence(f"Operations ({_which(operations)}): {unit.name} per step", "title")
        has_device = operations.device is not None
        columns = ["calls", "host", "% host"]
        if has_device:
            columns += ["launches", "device", "% device"]
        whole = reduce(add, operations.phases)

        def cells(one: Operation) -> list[str]:
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
        by_path = [Row(one.path or _NO_PHASE, cells(one)) for one in operations.phases]
        yield from _table("operation", columns, by_operation)
        yield from _table("phase", columns, by_path, Row("all", cells(whole), emphasis="bold"))
        yield Sentence()
        yield Sentence(
            "host: time of an operation without those that it called, on all threads; device: time "
            "of the kernels and copies that it launched"
            if has_device
            else "host: time of an operation without those that it called, on all threads. No work "
            "of a device was seen"
        )
        if operations.device is not None:
            yield _device(operations.device)
        yield from _cost(operations)
        if operations.trace is not None:
            yield Sentence(f"Trace: {printable(operations.trace)}")

    def unknown(self, run: Run) -> Iterator[str]:
        if run.operations is None:
            yield "Operations, FLOPs: no step was profiled (run --profile-steps 3 --flops)."


def _times_around(run: Run) -> tuple[float | None, float | None, float | None]:
    """The median time of a profiled step, and of steps before and after, where enough are known.
    The first step of the run is left out, as it is longer for reasons of its own."""
    operations = run.operations
    if operations is None or operations.first_step is None or operations.last_step is None:
        return None, None, None
    steps = run.steps.closed
    index, times_ns = steps["index"], durations_ns_of(steps)
    others = ~run.profiled.among(index)
    inside = (index >= operations.first_step) & (index <= operations.last_step)
    before = others & (index < operations.first_step) & (index > 0)
    after = others & (index > operations.last_step)
    return (
        _median(times_ns[inside], 1),
        _median(times_ns[before][-NEIGHBOURS:], MIN_NEIGHBOURS),
        _median(times_ns[after][:NEIGHBOURS], MIN_NEIGHBOURS),
    )


def _median(times_ns: NDArray[np.int64], least: int) -> float | None:
    return float(np.median(times_ns)) if len(times_ns) >= least else None


_MOST_ROWS = 15
_NO_PHASE = "(outside phases)"


def _which(operations: OperationsSection) -> str:
    if operations.first_step is None or operations.last_step is None:
        return "within a step"
    if operations.first_step == operations.last_step:
        return f"profiled step {operations.first_step}"
    return f"profiled steps {operations.first_step}-{operations.last_step}"


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
    return f"{per_step:,.2f}".removesuffix(".00")


def _device(device: DeviceUse) -> Sentence:
    which = "Devices" if device.devices > 1 else "Device"
    idle_ns = device.elapsed_ns - device.busy_ns
    return Sentence(
        f"{which} idle: {duration(idle_ns)} of {duration(device.elapsed_ns)}"
        f"{share(idle_ns, device.elapsed_ns)}"
    )


def _cost(operations: OperationsSection) -> Iterator[Sentence]:
    if operations.step_ns is not None:
        times = {
            "profiled": operations.step_ns,
            "before": operations.step_before_ns,
            "after": operations.step_after_ns,
        }
        said = [f"{duration(ns)} {when}" for when, ns in times.items() if ns is not None]
        yield Sentence(
            f"A step took {', '.join(said)}. Profiled steps are slower, above all those of many "
            "short operations"
        )
    yield Sentence(
        f"Training stood still for {duration(operations.stopped_ns)} to start and end the "
        "profiler, between steps"
    )


ASPECT = OperationsAspect()
