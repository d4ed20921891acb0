# SPDX-License-Identifier: Apache-2.0
"""One step, the way people write it by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_detail import PhaseInStep
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import phase_table
from pyinstrument_gpu.report.table import UNKNOWN, Row, counted, share


def one_step(run: RunData, index: int, width: int) -> Iterator[Text | Table]:
    """Each phase of the step in seconds, their sum, the total and what is missing.

    Of a phase that began in an earlier step or outlasts this one, the part inside this step. Where
    the device was timed in this step, the stream times stand beside: of whole calls, and without a
    sum, for they overlap the host's and each other.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    found = analysis.of(run).step(index)
    step, total_ns = found.step, found.total_ns
    ended = step.duration_ns is not None
    decimals = 6 if total_ns >= 1e6 else 9

    def seconds(time_ns: int | None) -> str:
        return UNKNOWN if time_ns is None else f"{time_ns / 1e9:.{decimals}f} s"

    headers = ["", "host", "device"] if found.is_timed else []
    beside = [""] if found.is_timed else []
    missing = share(found.unattributed_ns, total_ns).strip()
    sums = [
        Row("sum", [seconds(found.phases_ns), *beside]),
        Row("total" if ended else "total so far", [seconds(total_ns), *beside]),
        Row("missing", [seconds(found.unattributed_ns), *beside], note=missing),
    ]
    facts = [f"Step {index}"]
    if step.samples is not None:
        facts.append(f"{step.samples:g} samples")
    if not step.complete:
        facts.append("cut short" if ended else "still open at the end")
    yield Text(", ".join(facts), "bold")

    def rows_of(phases: Mapping[int, PhaseInStep]) -> dict[int, Row]:
        return {path: _row(one, index, found.is_timed, seconds) for path, one in phases.items()}

    yield from phase_table(run, headers, rows_of(found.phases), width, sums)
    if found.other_threads:
        yield Text()
        yield Text("Other threads during this step")
        yield from phase_table(run, headers, rows_of(found.other_threads), width)
    if run.device_timing is not None and not found.is_timed:
        yield Text("The device was not timed in this step")
    losses = analysis.of(run).span_losses
    if not losses.are_located:
        lost = counted(losses.spans, "span")
        yield Text(f"! {lost} of the run lost, possibly from this step", "yellow")


def _row(
    phase: PhaseInStep, index: int, on_device: bool, seconds: Callable[[int | None], str]
) -> Row:
    remarks = [f"{phase.calls} calls"] if phase.calls > 1 else []
    if phase.since_step < index:
        remarks.append(f"since step {phase.since_step}")
    if phase.outlasts_step:
        remarks.append("outlasts the step")
    cells = [seconds(phase.host_ns)]
    if on_device:
        cells.append(seconds(phase.stream_ns))
        if 0 < phase.timed_calls < phase.calls:
            remarks.append(f"device: {phase.timed_calls} of them")
        if phase.has_unfinished_device_work:
            remarks.append("device work not finished")
    return Row("", cells, note=f"({', '.join(remarks)})" if remarks else "")
