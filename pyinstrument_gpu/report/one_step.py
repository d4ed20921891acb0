# SPDX-License-Identifier: Apache-2.0
"""One step, the way people write it by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.document.one_step import PhaseOfStep, StepDocument
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, counted, share


def one_step(step: StepDocument) -> Iterator[Part]:
    """Each phase of the step in seconds, their sum, the total and what is missing.

    Of a phase that began in an earlier step or outlasts this one, the part inside this step. Where
    the device was timed in this step, the stream times stand beside: of whole calls, and without a
    sum, for they overlap the host's and each other.
    """
    decimals = 6 if step.total_ns >= 1e6 else 9

    def seconds(time_ns: int | None) -> str:
        return UNKNOWN if time_ns is None else f"{time_ns / 1e9:.{decimals}f} s"

    headers = ["", "host", "device"] if step.is_timed_on_device else []
    beside = [""] if step.is_timed_on_device else []
    missing = share(step.unattributed_ns, step.total_ns).strip()
    sums = [
        Row("sum", [seconds(step.phases_ns), *beside]),
        Row("total" if step.has_ended else "total so far", [seconds(step.total_ns), *beside]),
        Row("missing", [seconds(step.unattributed_ns), *beside], note=missing),
    ]
    facts = [f"Step {step.step}"]
    if step.samples is not None:
        facts.append(f"{step.samples:g} samples")
    if not step.is_complete:
        facts.append("cut short" if step.has_ended else "still open at the end")
    yield Sentence(", ".join(facts), "title")

    def rows_of(phases: Sequence[PhaseOfStep]) -> dict[str, Row]:
        return {one.path: _row(one, step, seconds) for one in phases}

    yield from phase_table(headers, rows_of(step.phases), sums)
    if step.other_threads:
        yield Sentence()
        yield Sentence("Other threads during this step")
        yield from phase_table(headers, rows_of(step.other_threads))
    if step.device_timing and not step.is_timed_on_device:
        yield Sentence("The device was not timed in this step")
    if step.lost_spans:
        lost = counted(step.lost_spans, "span")
        yield Sentence(f"! {lost} of the run lost, possibly from this step", "warn")


def _row(phase: PhaseOfStep, step: StepDocument, seconds: Callable[[int | None], str]) -> Row:
    remarks = [f"{phase.calls} calls"] if phase.calls > 1 else []
    if phase.since_step < step.step:
        remarks.append(f"since step {phase.since_step}")
    if phase.outlasts_step:
        remarks.append("outlasts the step")
    cells = [seconds(phase.host_ns)]
    if step.is_timed_on_device:
        cells.append(seconds(phase.stream_ns))
        if 0 < phase.timed_calls < phase.calls:
            remarks.append(f"device: {phase.timed_calls} of them")
        if phase.has_unfinished_device_work:
            remarks.append("device work not finished")
    return Row("", cells, note=f"({', '.join(remarks)})" if remarks else "")
