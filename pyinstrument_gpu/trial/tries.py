# SPDX-License-Identifier: Apache-2.0
"""From a command to what makes it faster: records it once, runs it once to see where edits would be
made, and lets the search try what may gain by these two."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.run_sample import run_samples
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.verdict import NOT_STOPPED
from pyinstrument_gpu.trial import summary
from pyinstrument_gpu.trial.child import MadeEdit
from pyinstrument_gpu.trial.edits.edit import CallPlace, Changes, Facts
from pyinstrument_gpu.trial.edits.table import edits
from pyinstrument_gpu.trial.patch import Patch, patch_of
from pyinstrument_gpu.trial.search import Candidate, Search, SearchOutcome, candidates_of
from pyinstrument_gpu.trial.trials import TrialPlan, TrialRunner
from pyinstrument_gpu.trial.working_copy import WorkingCopy

_LEAST_REACH = 0.02
"""An edit that can save no more than this share of the time is not tried."""
_TRIALS = 45
"""About as many fit into the time."""
_LEAST_S, _MOST_S = 2.0, 60.0
"""Of steps in a trial."""
_MOST_STEPS, _FEWEST_STEPS = 20_000, 10
_RECORDED_SHARE = 0.1
"""Of the time, for the recorded run."""
_SLOWER = 4.0
"""How many times as long as the baseline a trial may take, and at least how many seconds longer."""
_LONGER_S = 60.0
_MOST_WRITTEN = 5


@dataclass(frozen=True)
class TriesResult:
    """What trials found.

    Attributes:
        plan: of each trial.
        verdict: what the recorded run says of the program.
        written: what the program wrote outside of its copy.
        place: where in the user's code an edit is made, in words.
    """

    outcome: SearchOutcome
    plan: TrialPlan
    verdict: str
    patch: Patch
    written: Sequence[str]
    place: Callable[[Candidate], str]

    def parts(self, file: str) -> Iterator[Part]:
        yield from summary.parts(self.outcome, self.verdict, self.patch, file, self.place)
        if self.written:
            names = ", ".join(self.written[:_MOST_WRITTEN])
            more = len(self.written) - _MOST_WRITTEN
            names += f" and {counted(more, 'other')}" if more > 0 else ""
            yield Sentence(
                f"Each trial wrote outside of the copy of the working directory: {names}", "warn"
            )


class Tries:
    """The trials of a command.

    Args:
        show: called with what is being done, and the seconds that are left.
    """

    def __init__(
        self,
        runner: TrialRunner,
        copy: WorkingCopy | None,
        show: Callable[[str, float], None] = lambda what, left_s: None,
    ) -> None:
        self._runner = runner
        self._copy = copy
        self._show = show

    def run(
        self,
        seconds: float,
        steps: int | None = None,
        only: frozenset[str] = frozenset(),
        allowed: Changes = Changes.LAST_DIGITS,
    ) -> TriesResult:
        """Try what may gain.

        Args:
            seconds: about how long it may take.
            steps: of each trial; None for as many as fit.
            only: the groups of edits that are tried; empty for all.
            allowed: what an edit may change at most.

        Raises:
            TrialError: the program fails, or has no steps.
        """
        self._show("recording the program", seconds)
        run = self._runner.recorded(max(_LEAST_S, _RECORDED_SHARE * seconds), seconds)
        facts = facts_of(run)
        plan = plan_of(run, seconds, steps)
        wanted = [
            (edit, reach)
            for edit in edits().values()
            if edit.changes <= allowed and (not only or edit.group in only)
            if (reach := edit.reach(facts)) >= _LEAST_REACH
        ]
        self._show("looking where edits would be made", 0.9 * seconds)
        dry = [MadeEdit(edit.name, edit.values(facts)[0]) for edit, _ in wanted]
        looked = self._runner.trial(dry, plan, is_dry=True)
        facts = replace(facts, threads=looked.finding.threads)
        variants = [(edit, reach, edit.values(facts)) for edit, reach in wanted]
        candidates = list(candidates_of(variants, looked.finding.met))
        limit_s = max(_SLOWER * looked.duration_s, looked.duration_s + _LONGER_S)
        plan = replace(plan, steps=min(plan.steps, looked.finding.steps), limit_s=limit_s)
        outcome = Search(self._runner, plan, candidates, looked, 0.85 * seconds, self._show).run()
        return TriesResult(
            outcome,
            plan,
            document_of(run).verdict.replace(NOT_STOPPED, ""),
            self._patch(outcome),
            sorted(looked.finding.written),
            self._words_of_place,
        )

    def _original(self, file: str) -> Path | None:
        if self._copy is not None:
            return self._copy.original(file)
        path = Path(file)
        return path if path.is_relative_to(Path.cwd()) and path.is_file() else None

    def _patch(self, outcome: SearchOutcome) -> Patch:
        program = self._runner.command.program
        place = None if program is None else Path.cwd() / program
        return patch_of(
            [(one.edit, one.made.value, one.places) for one in outcome.winners],
            self._original,
            place if place is not None and place.is_file() else None,
            Path.cwd(),
        )

    def _words_of_place(self, one: Candidate) -> str:
        if not one.places or one.edit.statement(one.made.value):
            return one.edit.where(one.made.value)
        return ", ".join(dict.fromkeys(self._line(place) for place in one.places))

    def _line(self, place: CallPlace) -> str:
        original = self._original(place.file)
        path = Path(place.file) if original is None else original
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return f"{path}:{place.line}"


def facts_of(run: Run) -> Facts:
    """Return what a run says of what may gain."""
    sample = run_samples([run])[0]
    shares = {name: ns / sample.elapsed_ns for name, ns in sample.outside_ns.items()}
    for name, ns in sample.phase_ns.items():
        shares[name] = shares.get(name, 0.0) + ns / sample.elapsed_ns
    collections = [one.section(run) for one in aspects() if one.name == "garbage_collection"]
    known = run.program_facts
    predictions = analysis.of(run).loader_predictions
    best = min(predictions, key=lambda one: one.wait_ns, default=None)
    return Facts(
        shares=shares,
        workers=known.loader_workers,
        predicted_workers=None if best is None or best.is_faster else best.workers,
        collector_share=next((one.share or 0.0 for one in collections if one is not None), 0.0),
        cores=len(os.sched_getaffinity(0)),
        has_gpu=bool(run.environment.get("gpus")),
        ranks=known.ranks or 1,
    )


def plan_of(run: Run, seconds: float, steps: int | None) -> TrialPlan:
    """Return how long a trial is, of which about as many fit into the time as a search needs."""
    closed = run.steps.closed
    took_s = float(closed["end_ns"][-1] - closed["begin_ns"][0]) / 1e9
    step_s = max(took_s / len(closed), 1e-6)
    startup_s = float(closed["begin_ns"][0]) / 1e9
    if steps is None:
        train_s = min(max(seconds / _TRIALS - startup_s, _LEAST_S), _MOST_S)
        steps = min(max(int(train_s / step_s), _FEWEST_STEPS), _MOST_STEPS)
        if run.complete:  # the program has no more
            steps = min(steps, run.steps_ended)
    warmup = min(max(3, steps // 10), steps - 2)
    return TrialPlan(warmup, steps, limit_s=max(_LONGER_S, _SLOWER * (startup_s + steps * step_s)))
