# SPDX-License-Identifier: Apache-2.0
"""The verdict: what a run says, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import (
    BUSY_SHARE,
    EDIT_SHARE,
    HEADLINE_SHARE,
    MIN_STEPS,
    Finding,
)
from pyinstrument_gpu.analysis.contention import CONTENTION
from pyinstrument_gpu.analysis.gaps import Training
from pyinstrument_gpu.analysis.rules import MOST_UNPRICED, unpriced_share
from pyinstrument_gpu.analysis.step_times import is_mostly_first, outside_ns, startup_ns
from pyinstrument_gpu.analysis.undisturbed import OUTSIDE
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import aspects, where_in_program
from pyinstrument_gpu.core.program_facts import CHILDREN
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.words import capitalised, counted, duration, small_percent
from pyinstrument_gpu.report.findings import Guides
from pyinstrument_gpu.report.no_steps import no_steps
from pyinstrument_gpu.report.phases import PhaseInSteps, overlap

NOT_STOPPED = "; the recording was not stopped, so its end is not here"
_MOSTLY, _LITTLE = 0.5, 0.1
_SECOND = 0.25
"""The least part of the time of the largest phase, of the next one that is named with it."""
_SKEWED = 0.2
"""How far mean and median lie apart, as a share of the mean, where one of them says too little."""

_MOST_TRAININGS = 3


def verdict(
    run: Run,
    phases: Sequence[PhaseInSteps],
    findings: Sequence[Finding],
    guides: Guides | None,
    sections: Mapping[str, Any],
) -> str:
    steps = run.step_totals.count
    failures = [one for one in findings if one.kind == "failure"]
    if failures:
        return f"{capitalised(failures[0].about)}: {failures[0].evidence}."
    if not steps:
        if not run.complete:
            return "The recording was not stopped, and no step that ended is in the file."
        if CHILDREN in run.environment:
            return f"No step ended: {no_steps(run)}."
        return "No step ended, so nothing can be said of steps."
    for aspect in aspects():
        section = sections.get(aspect.name)
        decided = None if section is None else aspect.verdict(section)
        if decided is not None:
            return decided
    elsewhere, totals = _elsewhere(run), analysis.of(run).step_totals
    takes = elsewhere + _first_step(run) + _takes(run)
    known = _times(run, phases)
    most = max(phases, key=lambda one: known.of(one), default=None)
    most_ns = 0.0 if most is None else known.of(most)
    between_ns = known.outside_ns
    # A task that is suspended is in its phase, and the host elsewhere.
    overlaps = overlap(phases, totals.duration.mean_ns) is not None
    found = ((one, sections.get(one.name)) for one in aspects())
    parts = [part for one, section in found if section and (part := one.in_steps(section))]
    where = ""
    if between_ns > most_ns:
        parts.append(_between(run, phases, between_ns, known.step_ns))
        where = where_in_program(run, Scope.STEP, None)
        parts[-1] += where
    elif most is not None and most_ns and not overlaps:
        share = small_percent(most_ns, known.step_ns)
        where = where_in_program(run, Scope.STEP, most.path)
        parts.append(f"the host spends {share} in {most.path}{where}")
        if not where:
            where = _where_second(run, phases, most, known)
            parts[-1] += where
    if parts and known.is_undisturbed:
        takes += f", and {duration(known.step_ns)} where nothing disturbs it"
    if parts:
        takes += f", of which {' and '.join(parts)}"
    if totals.count < MIN_STEPS:
        are = "is" if totals.count == 1 else "are"
        helps = f"{counted(totals.count, 'step')} {are} too few to say what a change could save"
    elif (
        between_ns > most_ns
        and not (where or is_mostly_first(run))
        and not any(one.is_certain for one in findings)
    ):
        helps = 'put gpu_phase("...") around the parts of that code to see what it is'
    else:
        helps = _what_helps(run, findings, guides, bool(where))
    end = "" if run.complete else NOT_STOPPED
    if (elsewhere and not findings) or not helps:
        return f"{takes}{end}."  # what could be saved in steps is not what matters, or not known
    return f"{takes}; {helps}{end}."


@dataclass(frozen=True)
class _Times:
    """The times of a step by which its largest part is told: means, or under CPU contention those
    of parts that nothing disturbs."""

    step_ns: float
    outside_ns: float
    by_phase: Mapping[str, float]
    is_undisturbed: bool

    def of(self, phase: PhaseInSteps) -> float:
        return self.by_phase.get(phase.path, 0.0)


def _times(run: Run, phases: Sequence[PhaseInSteps]) -> _Times:
    about = analysis.of(run)
    if about.undisturbed is None:
        means = {one.path: one.self_ns or 0.0 for one in phases}
        outside_ns = (about.attribution.outside_phases_ns or 0) / about.step_totals.count
        return _Times(about.step_totals.duration.mean_ns, outside_ns, means, False)
    known = dict(about.undisturbed.by_path)
    outside_ns = known.pop(OUTSIDE, 0.0)
    by_phase = {run.paths[path]: time_ns for path, time_ns in known.items()}
    return _Times(about.undisturbed.step_ns, outside_ns, by_phase, True)


def _where_second(
    run: Run, phases: Sequence[PhaseInSteps], most: PhaseInSteps, known: _Times
) -> str:
    """Return the next phase with the line in which it is, behind " and ", where the largest has
    none, as a backward pass, which does in C++ what the lines of the forward pass ask for. "" if it
    is far smaller."""
    others = [one for one in phases if one is not most]
    second = max(others, key=known.of, default=None)
    if second is None or known.of(second) < _SECOND * known.of(most):
        return ""
    where = where_in_program(run, Scope.STEP, second.path)
    share = small_percent(known.of(second), known.step_ns)
    return where and f" and {share} in {second.path}{where}"


def _elsewhere(run: Run) -> str:
    """Return where the time outside of steps goes, where that is most of what elapsed since the
    first step began. Samples of stacks may be of what came before it: they count where that is
    little."""
    startup = startup_ns(run)
    if startup is None or analysis.of(run).step_totals.count < MIN_STEPS:
        return ""
    elapsed_ns, between_ns = run.duration_ns - startup, outside_ns(run) - startup
    if between_ns <= _MOSTLY * elapsed_ns:
        return ""
    text = f"{small_percent(between_ns, elapsed_ns)} of the {duration(elapsed_ns)} since the first "
    text += "step began lies outside of steps"
    spans = run.spans[(span_scopes(run.spans) == Scope.OUTSIDE) & (run.spans["host_end_ns"] >= 0)]
    spans = spans[run.path_parents[spans["path"]] < 0]
    is_before = spans["host_begin_ns"] < startup
    times_ns = durations_ns_of(spans, "host_")
    paths = len(run.paths)
    before_ns, since_ns = (
        np.bincount(spans["path"][chosen], times_ns[chosen], paths)
        for chosen in (is_before, ~is_before)
    )
    largest = int(np.argmax(since_ns)) if paths else -1
    if largest < 0 or not _MOSTLY * between_ns <= since_ns[largest] <= between_ns:
        is_little = startup <= _LITTLE * between_ns
        return text + (where_in_program(run, Scope.OUTSIDE, None) if is_little else "") + ". "
    text += f", {small_percent(since_ns[largest], between_ns)} of it in {run.paths[largest]}"
    is_little = before_ns[largest] <= _LITTLE * since_ns[largest]
    where = where_in_program(run, Scope.OUTSIDE, run.paths[largest]) if is_little else ""
    line = run.line_of_phase(largest)
    where = where or (f" (first called at {line})" if line else "")
    return f"{text}{where}. "


def _first_step(run: Run) -> str:
    """Return what the first step takes, where that is most of the time of all."""
    totals = analysis.of(run).step_totals
    if totals.count < MIN_STEPS or not is_mostly_first(run):
        return ""
    first = run.steps.array[0]
    first_ns = int(first["end_ns"] - first["begin_ns"])
    share = small_percent(first_ns, run.step_totals.duration.total_ns)
    return f"The first step took {duration(first_ns)}, {share} of the time of all steps. "


def _takes(run: Run) -> str:
    about = analysis.of(run)
    mean_ns = about.step_totals.duration.mean_ns
    takes = f"A step takes {duration(mean_ns)}"
    if 1 < len(about.trainings) <= _MOST_TRAININGS:
        return f"{takes} on average, {' and '.join(map(_of_training, about.trainings))}"
    median_ns = next(iter(about.step_quantiles.duration_ns), None)
    if median_ns is not None and abs(mean_ns - median_ns) > _SKEWED * mean_ns:
        takes += f" on average ({duration(median_ns)} in the median)"
    if about.updates is not None:
        takes += f" and an update {duration(about.updates.update_ns)}"
        *counts, last = (f"{count:,}" for count in about.updates.counts)
        takes += f" (the optimizers step {', '.join(counts)} and {last} times"
        takes += f" in {counted(about.step_totals.count, 'step')})"
    return takes


def _of_training(one: Training) -> str:
    text = f"{duration(one.step_ns)} in {counted(one.steps, 'step')} of {one.optimizer}"
    if one.backward_passes <= 1:
        return text
    return f"{text} ({one.backward_passes:,.4g} backward passes each)"


def _between(run: Run, phases: Sequence[PhaseInSteps], between_ns: float, step_ns: float) -> str:
    """Return where the time outside of phases is, which is more than that of any phase."""
    share = small_percent(between_ns, step_ns)
    if not phases:
        return f"{share} lies outside all phases, as it has none"
    largest = next(iter(analysis.of(run).gaps), None)
    if largest is None:
        return f"{share} lies outside all phases"
    before, behind = (_placed(run, path) for path in (largest.before, largest.behind))
    where = f"between {before} and {behind}"
    if before is None:
        where = f"in front of {behind}" if behind is not None else "in steps without a phase"
    elif behind is None:
        where = f"after {before}, the last phase of the step"
    of_it = (
        ""
        if largest.time_ns >= between_ns
        else (f", {small_percent(largest.time_ns, between_ns)} of that")
    )
    rare = ", most of it in few steps" if largest.is_rare else ""
    return f"{share} lies outside all phases{of_it} {where}{rare}"


def _placed(run: Run, path: int) -> str | None:
    """A phase with the line of its first call, where that is known; later ones may be elsewhere."""
    line = None if path < 0 else run.line_of_phase(path)
    return None if path < 0 else run.paths[path] + (f" (first called at {line})" if line else "")


def _what_helps(
    run: Run, findings: Sequence[Finding], guides: Guides | None, has_place: bool
) -> str:
    """Return what a change could save. `has_place`: the code that takes most has been named."""
    certain = [one for one in findings if one.is_certain and one.high_ns and one.of_ns]
    large = [one for one in certain if (one.high_ns or 0) >= HEADLINE_SHARE * (one.of_ns or 0)]
    if large:
        sure = f"could save {_saving(run, large[0])}: {_change(large[0])}"
        if findings[0].kind == "doubt":
            return f"{_may_save(run, findings[0])}; another {sure}"
        return f"one change {sure}"
    savings = analysis.of(run).savings
    if savings.busy_ns is not None and savings.busy_ns >= BUSY_SHARE * savings.step_ns:
        busy = small_percent(savings.busy_ns, savings.step_ns)
        return f"the device is busy for at least {busy} of it, so only less work for it helps"
    doubts = [one for one in findings if one.kind in ("doubt", "guide") and not one.is_certain]
    if doubts:
        first = doubts[0]
        if not first.high_ns or not first.of_ns:
            return f"what a change could save is unknown: {first.evidence}"
        return _may_save(run, first)
    if certain:
        return f"no change that was considered saves {HEADLINE_SHARE:.0%} of it"
    if guides is not None and guides.nothing_worth_an_edit:
        return f"nothing{' else' if has_place else ''} that was considered is worth an edit"
    if analysis.of(run).is_contended:
        if has_place and analysis.of(run).undisturbed is not None:
            return ""
        return f"what a change could save can't be told under {CONTENTION}"
    if (unpriced := unpriced_share(run)) > MOST_UNPRICED:
        return (
            f"no change that was considered saves {EDIT_SHARE:.0%} of it, and {unpriced:.0%} of it "
            "is the program's own computing: run --modules --profile-steps 3 shows its operators"
        )
    return "what a change could save is not known from this run"


def _may_save(run: Run, one: Finding) -> str:
    may = f"one change may save {_saving(run, one)}"
    return f"{may}, but this run can't tell: {_change(one)}"


def _change(one: Finding) -> str:
    return one.about if one.kind == "guide" else f"no more {one.about}"


def _saving(run: Run, one: Finding) -> str:
    assert one.low_ns is not None and one.high_ns is not None and one.of_ns
    low, high = (small_percent(ns, one.of_ns) for ns in (one.low_ns, one.high_ns))
    whole = f"the {one.of}"
    mean_ns = analysis.of(run).step_totals.duration.mean_ns
    if one.of == "step" and abs(one.of_ns - mean_ns) > _SKEWED * mean_ns:
        whole = f"the step ({duration(one.of_ns)} in the part of the run that can tell)"
    where = ", most of it in few steps" if one.is_rare else ""
    if one.low_ns <= 0:
        return f"at most {high} of {whole}{where}"
    return f"{high if low == high else f'{low} to {high}'} of {whole}{where}"
