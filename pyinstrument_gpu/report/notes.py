# SPDX-License-Identifier: Apache-2.0
"""Sentences on what is missing from a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.arrays import groups
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.condition import ProgramEnd
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import counted, duration, printable

_MAX_PATHS = 200


def notes(run: Run) -> tuple[str, ...]:
    """Return what is damaged, was cut short, had not ended, is that of a preview, or makes all
    times longer."""
    of_end = *_failed(run), *_open(run), *_unfinished(run), *_cut_short(run)
    warnings = (warning for aspect in aspects() for warning in aspect.warnings(run))
    return (*run.notes, *_preview(run), *warnings, *of_end)


def _preview(run: Run) -> Iterator[str]:
    if run.syncs.is_as_if:
        yield (
            "The times are those of a preview, not of the program: it slows down every operation, "
            "and runs functions of torch.compile eagerly, whose results may differ in the last "
            "digits."
        )


def _failed(run: Run) -> Iterator[str]:
    end = ProgramEnd.of(run.environment)
    if end.has_failed:
        how = f"by {end.exception}" if end.exception else f"with exit code {end.exit_code}"
        yield f"Ended {how}."


def _open(run: Run) -> Iterator[str]:
    if run.open_phases:
        opened = ", ".join(
            f"{phase.path} ({run.threads[phase.thread].name}, since {duration(phase.begin_ns)})"
            for phase in run.open_phases
        )
        yield f"Open at the end: {opened}."
    if run.open_step is not None:
        yield f"Step {run.open_step.index} had not ended: its phases are counted, its time is not."
    if run.environment.get("optimizer_seen") is False:
        yield "No optimizer was seen, so each step ends with a backward pass."


def _unfinished(run: Run) -> Iterator[str]:
    by_path = run.pending_device_work
    if not by_path:
        unfinished = (run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED) != 0
        spans = groups(run.spans["path"][unfinished])
        by_path = {run.paths[path]: len(places) for path, places in spans}
    if by_path:
        names = [f"{path} ({counted(spans, 'span')})" for path, spans in by_path.items()]
        if len(names) > _MAX_PATHS:
            names[_MAX_PATHS:] = [counted(len(names) - _MAX_PATHS, "more path")]
        yield f"Device work not finished at the end: {', '.join(names)}."


def _cut_short(run: Run) -> Iterator[str]:
    totals = run.step_totals
    if totals.count > totals.complete:
        cut = totals.count - totals.complete
        are_left_out = len(analysis.of(run).cut_short) == cut
        left_out = "; times per step leave them out" if are_left_out else ""
        yield f"Cut short: {cut:,} of {counted(totals.count, 'step')}{left_out}."


def unknown(run: Run) -> Iterator[str]:
    """Yield what a report would say if it had been recorded, with how to record it."""
    gpus = run.environment.get("gpus")
    if run.device_timing is None and all(phase.device is None for phase in run.phases.values()):
        why = "the run has none"
        if gpus == []:
            why = "the process saw no GPU"
        elif run.environment.get("device_timing", {}) is None:
            why = "device timing was off"
        elif "accelerator" in run.environment:
            why = f"not supported on {run.environment['accelerator']}, only on NVIDIA GPUs"
        yield f"Times on the device: {why}."
    if not run.step_totals.count:
        ended = "no step ended" if run.complete else "no step that ended is in the file"
        yield f"Times per step: {ended}."
    elif not run.step_totals.sampled:
        yield "Samples per second: the number of samples in a batch is not known."
    for aspect in aspects():
        yield from aspect.unknown(run)


def notes_parts(lines: Iterable[str]) -> Iterator[Sentence]:
    """Yield what the reader has to know, each on lines of its own, behind an empty one."""
    shown = [Sentence(f"! {printable(line)}", "warn") for line in lines]
    yield from [Sentence(), *shown] if shown else []
