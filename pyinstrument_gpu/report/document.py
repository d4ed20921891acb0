# SPDX-License-Identifier: Apache-2.0
"""The document: all that a report says of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.time_budget import TimeBudget
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import counted
from pyinstrument_gpu.report.findings import Guides, findings, guides
from pyinstrument_gpu.report.notes import notes, unknown
from pyinstrument_gpu.report.phases import (
    ClockFit,
    PhaseCalls,
    PhaseInSteps,
    device_clocks,
    phases_in_steps,
    phases_on_other_threads,
    phases_outside,
    phases_without_steps,
    queue_time_uncertainty_ns,
)
from pyinstrument_gpu.report.plain import rounded
from pyinstrument_gpu.report.recorder import Recorder, recorder
from pyinstrument_gpu.report.run_info import RunInfo, run_info
from pyinstrument_gpu.report.savings import Savings, savings
from pyinstrument_gpu.report.slow_steps import SlowSteps, slow_steps
from pyinstrument_gpu.report.steps import StepTimes, steps
from pyinstrument_gpu.report.verdict import verdict

VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""


@dataclass(frozen=True)
class Document:
    """The whole report of a run. A section is missing where nothing of its kind was recorded.

    Attributes:
        version: of this format.
        file: the run file.
        verdict: what the run says, in one sentence.
        findings: what matters most first: failures, what is worth an edit, what may be.
        run: what was recorded.
        steps: the steps that ended.
        phases: on the steps' own thread, each before those inside it.
        phases_outside: outside steps.
        phases_on_other_threads: while a step was open; not part of its time.
        phases_without_steps: all phases, where no step ended.
        queue_time_uncertainty_ns: by how much a phase's `queue_time_` values may be off, at worst.
        device_clocks: of the devices that were timed.
        time_budget: a step's time, by what host and device did.
        slow_steps: what slow steps cost, and what made them slow.
        savings: what changes could save.
        guides: what guides advise, and what it is worth here.
        sections: those of the aspects, by their names, which are members of the document in JSON.
        notes: what is damaged, was cut short, had not ended, or is that of a preview.
        unknown: what was not recorded.
        recorder: what recording cost, and what was dropped.
    """

    version: int
    file: str | None
    verdict: str
    findings: tuple[Finding, ...]
    run: RunInfo
    steps: StepTimes | None
    phases: tuple[PhaseInSteps, ...]
    phases_outside: tuple[PhaseCalls, ...]
    phases_on_other_threads: tuple[PhaseCalls, ...]
    phases_without_steps: tuple[PhaseCalls, ...]
    queue_time_uncertainty_ns: float | None
    device_clocks: tuple[ClockFit, ...]
    time_budget: TimeBudget | None
    slow_steps: SlowSteps | None
    savings: Savings | None
    guides: Guides | None
    sections: Mapping[str, Any]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    recorder: Recorder

    @property
    def step_count(self) -> int:
        return 0 if self.steps is None else self.steps.count

    @property
    def step_words(self) -> str:
        """How many steps there were, with those that times leave out."""
        profiled = 0 if self.steps is None else self.steps.profiled
        text = counted(self.step_count + profiled, "step")
        return f"{text} ({profiled:,} of them profiled)" if profiled else text

    @property
    def duration_ns(self) -> int:
        return self.run.duration_ns


def document_of(run: Run, file: str | None = None) -> Document:
    """The document of a run. It costs the whole analysis: some 0.1 s per 100,000 spans."""
    in_steps, found = phases_in_steps(run), findings(run, file)
    sections = {one.name: one.section(run) for one in aspects() if one.section_type is not None}
    advised = guides(run, {one.about for one in found if one.kind == "guide"})
    document = Document(
        version=VERSION,
        file=file,
        verdict=verdict(run, in_steps, found, advised, sections),
        findings=found,
        run=run_info(run),
        steps=steps(run),
        phases=in_steps,
        phases_outside=phases_outside(run),
        phases_on_other_threads=phases_on_other_threads(run),
        phases_without_steps=phases_without_steps(run),
        queue_time_uncertainty_ns=queue_time_uncertainty_ns(run),
        device_clocks=device_clocks(run),
        time_budget=analysis.of(run).mean_time_budget,
        slow_steps=slow_steps(run),
        savings=savings(run),
        guides=advised,
        sections=sections,
        notes=notes(run),
        unknown=tuple(unknown(run)),
        recorder=recorder(run),
    )
    return rounded(document)
