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
from pyinstrument_gpu.aspects.garbage_collection import KIND as COLLECTION
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.verdict import NOT_STOPPED
from pyinstrument_gpu.trial import summary
from pyinstrument_gpu.trial.child import MadeEdit, Met
from pyinstrument_gpu.trial.edits.edit import CallPlace, Changes, Edit, Facts, Value
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
_MOST_STEPS, _FEWEST_STEPS = 20_000, 20
_WARMUP = 3
"""The fewest steps that are left out."""
_FOR_TRIALS = 0.85
"""The part of the time that is left when the program was recorded, and run once."""
_SLOWER = 4.0
"""How many times as long as the baseline a trial may take, and at least how many seconds longer."""
_LONGER_S = 60.0
_MOST_WRITTEN = 5
_CACHES = (".cache", ".config", ".triton", ".nv")
"""Folders in the user's home to which libraries write by themselves."""


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
            yield Sentence(
                f"Each trial wrote outside of the working directory: {_named(self.written)}", "warn"
            )


class Tries:
    """The trials of a command.

    Args:
        may_write_outside: whether trials go on where one has written outside of its copy.
        show: called with what is being done, and the seconds that are left.
    """

    def __init__(
        self,
        runner: TrialRunner,
        copy: WorkingCopy | None,
        may_write_outside: bool = False,
        show: Callable[[str, float], None] = lambda what, left_s: None,
    ) -> None:
        self._runner = runner
        self._copy = copy
        self._may_write_outside = may_write_outside
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
            TrialError: the program fails, has no steps, or writes where it may not.
        """
        self._show("recording the program", seconds)
        run = self._runner.recorded(max(_LEAST_S, seconds / 10), seconds)
        facts = facts_of(run)
        plan = plan_of(run, seconds, steps)
        wanted = [
            (edit, value)
            for edit in edits().values()
            if edit.changes <= allowed and (not only or edit.group in only)
            if edit.reach(facts) >= _LEAST_REACH
            for value in edit.values(facts)
        ]
        self._show("looking where edits would be made", 0.9 * seconds)
        dry = [MadeEdit(edit.name, value) for edit, value in wanted]
        looked = self._runner.trial(dry, plan, is_dry=True)
        written = [path for path in sorted(looked.data.written) if not _is_cache(path)]
        if written and self._copy is not None and not self._may_write_outside:
            raise TrialError(
                f"the program writes outside of the working directory: {_named(written)}. Each "
                "trial would do so. Give --write-outside if it may"
            )
        known = replace(facts, threads=looked.data.threads)
        variants: dict[Edit, list[tuple[Value, Met]]] = {}
        for (edit, value), met in zip(wanted, looked.data.met, strict=True):
            if value in edit.values(known):
                variants.setdefault(edit, []).append((value, met))
        fitting = [(edit, edit.reach(facts), found) for edit, found in variants.items()]
        plan = replace(
            plan,
            steps=looked.data.steps,  # the program may have fewer
            limit_s=max(_SLOWER * looked.duration_s, looked.duration_s + _LONGER_S),
        )
        candidates = list(candidates_of(fitting))
        ahead = {one: one.edit.warmup(one.made.value, facts) for one in candidates}
        candidates = [one for one in candidates if ahead[one] <= plan.steps // 3]
        plan = replace(plan, warmup=max([plan.warmup, *map(ahead.__getitem__, candidates)]))
        seconds *= _FOR_TRIALS
        search = Search(
            self._runner, plan, candidates, looked.data.results, seconds, allowed, self._show
        )
        outcome = search.run()
        verdict = document_of(run).verdict.replace(NOT_STOPPED, "")
        return TriesResult(
            outcome, plan, verdict, self._patch(outcome), written, self._words_of_place
        )

    def _original(self, file: str) -> Path | None:
        if self._copy is not None:
            return self._copy.original(file)
        path = Path(file)
        return path if path.is_relative_to(Path.cwd()) and path.is_file() else None

    def _patch(self, outcome: SearchOutcome) -> Patch:
        program = self._runner.program
        return patch_of(
            [(one.edit, one.made.value, one.places) for one in outcome.best],
            self._original,
            program,
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
    # Of a run that was ended the file has its collections, and no sum of them.
    collections, more = run.noted_causes.of_kind(COLLECTION)
    collector_ns = int(durations_ns_of(collections).sum() + more["time_ns"].sum())
    first_ns = int(run.steps.closed["begin_ns"][0])
    known = run.program_facts
    predictions = analysis.of(run).loader_predictions
    best = min(predictions, key=lambda one: one.wait_ns, default=None)
    return Facts(
        shares=shares,
        workers=known.loader_workers,
        predicted_workers=None if best is None or best.is_faster else best.workers,
        collector_share=collector_ns / max(run.duration_ns - first_ns, 1),
        cores=len(os.sched_getaffinity(0)),
        has_gpu=bool(run.environment.get("gpus")),
        ranks=known.ranks or 1,
    )


def plan_of(run: Run, seconds: float, steps: int | None) -> TrialPlan:
    """Return how long a trial is, of which about as many fit into the time as a search needs.

    Raises:
        TrialError: the program has too few steps.
    """
    closed = run.steps.closed
    took_s = float(closed["end_ns"][-1] - closed["begin_ns"][0]) / 1e9
    step_s = max(took_s / len(closed), 1e-6)
    startup_s = float(closed["begin_ns"][0]) / 1e9
    if steps is None:
        train_s = min(max(seconds / _TRIALS - startup_s, _LEAST_S), _MOST_S)
        steps = min(max(int(train_s / step_s), _FEWEST_STEPS), _MOST_STEPS)
    if run.complete:  # the program has no more
        steps = min(steps, run.steps_ended)
    if steps < _WARMUP + 2:
        raise TrialError(f"the program has {steps} steps, of which nothing can be measured")
    warmup = min(max(_WARMUP, steps // 10), steps - 2)
    return TrialPlan(warmup, steps, max(_LONGER_S, _SLOWER * (startup_s + steps * step_s)))


def _is_cache(path: str) -> bool:
    home = os.path.realpath(os.path.expanduser("~"))
    return any(path.startswith(os.path.join(home, name) + os.sep) for name in _CACHES)


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_WRITTEN
    names = ", ".join(paths[:_MOST_WRITTEN])
    return f"{names} and {counted(more, 'other')}" if more > 0 else names
