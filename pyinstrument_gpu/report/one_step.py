# SPDX-License-Identifier: Apache-2.0
"""The document of a single step: what each phase took in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import phases_ns
from pyinstrument_gpu.core.arrays import groups
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag, span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, counted, share
from pyinstrument_gpu.report.document import VERSION
from pyinstrument_gpu.report.slow_steps import SlowStep, slow_step, step_words


@dataclass(frozen=True)
class PhaseOfStep:
    """A phase in one step.

    Attributes:
        host_ns: as far as it lies inside the step.
        device_ns: of whole calls, the `timed_calls` of them.
        since_step: the step in which the first of its calls began.
        outlasts_step: whether it ended after the step.
    """

    path: str
    calls: int
    host_ns: int
    device_ns: int | None
    timed_calls: int
    since_step: int
    outlasts_step: bool
    has_unfinished_device_work: bool


@dataclass(frozen=True)
class StepDocument:
    """A step of a run.

    Attributes:
        version: of this format.
        file: the run file.
        step: its index.
        begin_ns: since the begin of the recording.
        has_ended: false: `total_ns` is the time so far.
        is_complete: whether it ran to its end.
        phases_ns: what phases account for.
        outside_phases_ns: the rest.
        is_timed_on_device: whether the device was timed in this step.
        device_timing: whether it was timed in others.
        phases: on the step's own thread, each before those inside it.
        other_threads: on other threads, while it was open.
        lost_spans: spans of the run that are missing, possibly from this step.
        slow: what made it slow; None if it is not.
    """

    version: int
    file: str | None
    step: int
    begin_ns: int
    has_ended: bool
    is_complete: bool
    samples: float | None
    total_ns: int
    phases_ns: int
    outside_phases_ns: int
    is_timed_on_device: bool
    device_timing: bool
    phases: tuple[PhaseOfStep, ...]
    other_threads: tuple[PhaseOfStep, ...]
    lost_spans: int
    slow: SlowStep | None


def step_document(run: Run, index: int, file: str | None = None) -> StepDocument:
    """The document of the step with that index. Of a phase that began in an earlier step or
    outlasts this one, the part inside it counts.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    step, losses = run.steps.by_index(index), analysis.of(run).span_losses
    kept_steps = analysis.of(run).kept_steps
    kept = kept_steps["index"]
    if index not in kept:
        raise KeyError(
            f"only the duration of step {index} is known: its spans are no longer kept"
            + (f"; those of steps {kept[0]} to {kept[-1]} are" if len(kept) else "")
        )
    row = kept_steps[kept == index]
    if step.duration_ns is None:
        row["end_ns"] = run.duration_ns
    total_ns, in_phases_ns = int(row["end_ns"][0] - step.begin_ns), int(phases_ns(run, row)[0])
    spans, scopes = run.spans, span_scopes(run.spans)
    begun_here = spans["step"] == index
    open_before = (spans["step"] < index) & (spans["host_end_ns"] > step.begin_ns)
    of_thread = (scopes == Scope.STEP) & (spans["thread"] == step.thread)
    is_timed = ((spans["flags"] & SpanFlag.DEVICE) != 0) | (run.span_device_ns >= 0)
    return StepDocument(
        version=VERSION,
        file=file,
        step=index,
        begin_ns=step.begin_ns,
        has_ended=step.duration_ns is not None,
        is_complete=step.complete,
        samples=step.samples,
        total_ns=total_ns,
        phases_ns=in_phases_ns,
        outside_phases_ns=total_ns - in_phases_ns,
        is_timed_on_device=bool(is_timed[begun_here].any()),
        device_timing=run.device_timing is not None,
        phases=_phases(run, of_thread & (begun_here | open_before), row),
        other_threads=_phases(run, begun_here & (scopes == Scope.OTHER_THREADS), row),
        lost_spans=0 if losses.are_located else losses.spans,
        slow=_slow(run, index),
    )


def _slow(run: Run, index: int) -> SlowStep | None:
    found = analysis.of(run).excess
    places = np.flatnonzero(found.steps["index"] == index).tolist()
    return slow_step(run, found, places[0]) if places else None


def _phases(run: Run, chosen: NDArray[np.bool_], step: NDArray[np.void]) -> tuple[PhaseOfStep, ...]:
    spans, device_ns = run.spans[chosen], run.span_device_ns[chosen]
    begins_ns = np.maximum(spans["host_begin_ns"], step["begin_ns"])
    inside_ns = np.maximum(np.minimum(spans["host_end_ns"], step["end_ns"]) - begins_ns, 0)
    by_path = dict(groups(spans["path"]))
    found = []
    for path in in_tree_order(run.path_parents, by_path):
        places = by_path[path]
        of_path, timed_ns = spans[places], device_ns[places][device_ns[places] >= 0]
        found.append(
            PhaseOfStep(
                path=run.paths[path],
                calls=len(places),
                host_ns=int(inside_ns[places].sum()),
                device_ns=int(timed_ns.sum()) if len(timed_ns) else None,
                timed_calls=len(timed_ns),
                since_step=int(of_path["step"].min()),
                outlasts_step=bool((of_path["host_end_ns"] > step["end_ns"]).any()),
                has_unfinished_device_work=bool(
                    (of_path["flags"] & SpanFlag.DEVICE_UNFINISHED).any()
                ),
            )
        )
    return tuple(found)


def one_step(step: StepDocument) -> Iterator[Part]:
    """Yield each phase of the step in seconds, their sum, the total and what is missing.

    Of a phase that began in an earlier step or outlasts this one, the part inside this step. Where
    the device was timed in this step, the device times stand beside: of whole calls, and without a
    sum, for they overlap the host's and each other.
    """
    decimals = 6 if step.total_ns >= 1e6 else 9

    def seconds(time_ns: int | None) -> str:
        return UNKNOWN if time_ns is None else f"{time_ns / 1e9:.{decimals}f} s"

    headers = ["", "host", "device"] if step.is_timed_on_device else []
    beside = [""] if step.is_timed_on_device else []
    missing = share(step.outside_phases_ns, step.total_ns).strip()
    sums = [
        Row("sum", [seconds(step.phases_ns), *beside]),
        Row("total" if step.has_ended else "total so far", [seconds(step.total_ns), *beside]),
        Row("outside phases", [seconds(step.outside_phases_ns), *beside], note=missing),
    ]
    facts = [f"Step {step.step}"]
    if step.samples is not None:
        facts.append(f"{step.samples:g} samples")
    if not step.is_complete:
        facts.append("cut short" if step.has_ended else "still open at the end")
    yield Sentence(", ".join(facts), "title")
    if step.slow is not None:
        yield Sentence(step_words(step.slow))
        unseen = step.slow.not_looked_at
        if unseen and not step.slow.is_explained:
            yield Sentence(f"Causes not recorded in this step: {', '.join(unseen)}", "note")

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
        cells.append(seconds(phase.device_ns))
        if 0 < phase.timed_calls < phase.calls:
            remarks.append(f"device: {phase.timed_calls} of them")
        if phase.has_unfinished_device_work:
            remarks.append("device work not finished")
    return Row("", cells, note=f"({', '.join(remarks)})" if remarks else "")
