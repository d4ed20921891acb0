# SPDX-License-Identifier: Apache-2.0
"""The document: all that a report says of a run."""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.ledger import Ledger
from pyinstrument_gpu.aspects.energy.section import GpuEnergy, energy
from pyinstrument_gpu.aspects.memory.section import MemoryUse, memory
from pyinstrument_gpu.aspects.modules.section import Modules, modules
from pyinstrument_gpu.aspects.operations.section import Operations, operations
from pyinstrument_gpu.aspects.readings.section import Metric, metrics
from pyinstrument_gpu.aspects.syncs.section import Syncs, syncs
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.document.findings import Guides, findings, guides
from pyinstrument_gpu.document.notes import notes, unknown
from pyinstrument_gpu.document.phases import (
    PhaseCalls,
    PhaseInSteps,
    phases_in_steps,
    phases_on_other_threads,
    phases_outside,
    phases_without_steps,
)
from pyinstrument_gpu.document.plain import rounded
from pyinstrument_gpu.document.recorder import Recorder, recorder
from pyinstrument_gpu.document.run_info import RunInfo, run_info
from pyinstrument_gpu.document.savings import Savings, savings
from pyinstrument_gpu.document.steps import StepTimes, steps
from pyinstrument_gpu.document.verdict import verdict

VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""


@dataclass(frozen=True)
class DeviceClock:
    """How well the times of a device fit the host's.

    Attributes:
        uncertainty_ns: by how much they may be off.
        drift_ppm: how much faster the device's clock runs, in parts per million.
    """

    device: int
    uncertainty_ns: float
    drift_ppm: float | None


@dataclass(frozen=True)
class Document:
    """All that a report says of a run. A section is missing where nothing of its kind was recorded.

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
        ahead_uncertainty_ns: by how much a phase's `ahead_` times may be off, at worst.
        device_clocks: of the devices that were timed.
        ledger: a step's time, by what host and device did.
        savings: what changes could save.
        guides: what guides advise, and what it is worth here.
        syncs: where the host waits for a device.
        modules: of the model, forward and backward.
        operations: what torch's profiler has seen.
        memory: by phase, and whether it grows.
        energy: by GPU.
        metrics: as they were read during the run.
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
    ahead_uncertainty_ns: float | None
    device_clocks: tuple[DeviceClock, ...]
    ledger: Ledger | None
    savings: Savings | None
    guides: Guides | None
    syncs: Syncs | None
    modules: Modules | None
    operations: Operations | None
    memory: MemoryUse | None
    energy: tuple[GpuEnergy, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    recorder: Recorder


def document_of(run: Run, file: str | None = None) -> Document:
    """The document of a run. It costs the whole analysis: some 0.1 s per 100,000 spans."""
    in_steps, found = phases_in_steps(run), findings(run, file)
    waits = syncs(run)
    advised = guides(run, {one.about for one in found if one.kind == "guide"})
    document = Document(
        version=VERSION,
        file=file,
        verdict=verdict(run, in_steps, found, advised, waits),
        findings=found,
        run=run_info(run),
        steps=steps(run),
        phases=in_steps,
        phases_outside=phases_outside(run),
        phases_on_other_threads=phases_on_other_threads(run),
        phases_without_steps=phases_without_steps(run),
        ahead_uncertainty_ns=_ahead_uncertainty_ns(run),
        device_clocks=tuple(
            DeviceClock(clock.device, clock.uncertainty_ns, clock.drift_ppm)
            for clock in run.device_clocks
        ),
        ledger=analysis.of(run).mean_ledger,
        savings=savings(run),
        guides=advised,
        syncs=waits,
        modules=modules(run),
        operations=operations(run),
        memory=memory(run),
        energy=energy(run),
        metrics=metrics(run),
        notes=notes(run),
        unknown=tuple(unknown(run)),
        recorder=recorder(run),
    )
    return rounded(document)


def _ahead_uncertainty_ns(run: Run) -> float | None:
    scope = Scope.STEP if run.step_totals.count else None
    ahead = analysis.of(run).run_ahead(scope)
    return max((one.uncertainty_ns for one in ahead.values()), default=None)
