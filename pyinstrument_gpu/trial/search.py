# SPDX-License-Identifier: Apache-2.0
"""The search for edits that make a program faster: which are tried how often, and what is a winner.

First *exploring*: in each round the baseline and all edits that are left run once, in random order,
and what can't win any more is left out. This finds candidates and claims nothing, as whoever looks
for the fastest of many finds luck as well. Then *confirming*: the few best, all of them together
and the baseline run afresh, in a number of rounds that is decided before. What is said of a winner
comes from these runs alone. Each round is one observation of each ratio, as what a machine does
meanwhile falls on all sides of a round; the intervals are Student's, of the logarithms, at a
confidence by which those of all sides hold together in 95 of 100 calls (Bonferroni).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import TypeAlias, TypeVar

import numpy as np

from pyinstrument_gpu.analysis.compare import CONFIDENCE
from pyinstrument_gpu.analysis.inference import t_quantile
from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.trial.child import MadeEdit, Met
from pyinstrument_gpu.trial.edits.edit import CallPlace, Changes, Edit
from pyinstrument_gpu.trial.results import Results, Same, alike
from pyinstrument_gpu.trial.trials import Runner, TrialPlan, TrialResult

_Side = TypeVar("_Side")
Sides: TypeAlias = "dict[tuple[Candidate, ...], list[float]]"
"""Times by what was edited together; nothing for the baseline."""
MARGIN = 0.01
"""A gain up to this share is none."""
EXPLORING = 0.45
"""The part of the time in which it is found what may win."""
MOST_ROUNDS, FEWEST_ROUNDS = 8, 4
"""Of confirming."""
_MOST_EXPLORING = 5
_FINALISTS = 4
_ASSUMED_NOISE = 0.05
"""Of the logarithm of a ratio, where a single round says nothing of it."""
_LIKELY = 2.0
"""How many standard errors away something no longer counts as possible."""
BUSY = 0.1
"""The share of the time in which a loop waits for a processor, from which a machine is busy."""


@dataclass(eq=False)
class Candidate:
    """An edit with its variant.

    Attributes:
        reach: the largest share of the time that it may save.
        places: where the program would be edited.
        ratios: in exploring, the logarithm of its time over that of the baseline, by round.
        problem: why it could not be tried to the end.
        same: the results beside those of the baseline.
    """

    edit: Edit
    made: MadeEdit
    reach: float
    places: tuple[CallPlace, ...] = ()
    ratios: list[float] = field(default_factory=list)
    startup_ns: list[int] = field(default_factory=list)
    problem: str = ""
    same: Same = Same.UNKNOWN

    @property
    def text(self) -> str:
        return self.edit.text(self.made.value)

    @property
    def mean(self) -> float:
        return float(np.mean(self.ratios)) if self.ratios else 0.0

    @property
    def is_allowed(self) -> bool:
        """True if its results changed no more than the edit says. Where other random numbers are
        drawn, all differs."""
        if self.edit.changes in (Changes.DRAWS, Changes.RESULTS):
            return True
        return self.same is not Same.DIFFERENT


@dataclass(frozen=True)
class RelativeChange:
    """By how much times per step differ, as a share, with an interval; None if there is none."""

    share: float
    low: float | None
    high: float | None

    @property
    def is_faster(self) -> bool:
        return self.high is not None and self.high < 0

    @classmethod
    def of(cls, ratios: Sequence[float], confidence: float) -> RelativeChange:
        mean, count = float(np.mean(ratios)), len(ratios)
        if count < 2:
            return cls(math.expm1(mean), None, None)
        error = float(np.std(ratios, ddof=1)) / math.sqrt(count)
        reach = t_quantile((1 + confidence) / 2, count - 1) * error
        return cls(math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach))


@dataclass
class SearchOutcome:
    """What a search found.

    Attributes:
        candidates: all that were tried, those that were confirmed first.
        confirmed: by candidate, the change in runs of its own.
        together: all winners at once, where there are several.
        rounds, steps: of confirming, and of each trial.
        baseline_ns: the mean time per step.
        waiting_share: of the time, in which the loop waited for a processor.
        is_deterministic: whether the baseline has the same results each time; None if unknown.
        not_tried: edits for which there was no time.
        is_interrupted: whether the search was ended before it was over.
    """

    candidates: list[Candidate] = field(default_factory=list)
    confirmed: dict[Candidate, RelativeChange] = field(default_factory=dict)
    together: tuple[tuple[Candidate, ...], RelativeChange] | None = None
    rounds: int = 0
    steps: int = 0
    baseline_ns: float = 0.0
    waiting_share: float = 0.0
    is_deterministic: bool | None = None
    not_tried: list[Candidate] = field(default_factory=list)
    is_interrupted: bool = False
    duration_s: float = 0.0

    @property
    def winners(self) -> list[Candidate]:
        """The edits that make the program faster, the best first."""
        found = [
            one for one, change in self.confirmed.items() if change.is_faster and one.is_allowed
        ]
        return sorted(found, key=lambda one: self.confirmed[one].share)

    @property
    def is_busy(self) -> bool:
        return self.waiting_share > BUSY


class Search:
    """A search.

    Args:
        candidates: what may be tried, that which may save most first.
        looked: a trial of the program without any edit, for its results.
        seconds: how long it may take.
        show: called with what is being done, and the seconds that are left.
        random: decides on the order of trials.
        clock: seconds.
    """

    def __init__(
        self,
        runner: Runner,
        plan: TrialPlan,
        candidates: Sequence[Candidate],
        looked: TrialResult,
        seconds: float,
        show: Callable[[str, float], None] = lambda what, left_s: None,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        t_quantile(CONFIDENCE, 1)  # a missing package is reported before anything runs
        self._runner = runner
        self._plan = plan
        self._left = list(candidates)
        self._seconds = seconds
        self._show = show
        self._random = random or SystemRandom()
        self._clock = clock
        self._begin_s = clock()
        self._durations_s: list[float] = []
        self._baselines: list[TrialResult] = []
        self._results = [looked.results]
        self._waiting: list[float] = []
        self.outcome = SearchOutcome(steps=plan.steps)

    def run(self) -> SearchOutcome:
        """Search; Ctrl-C ends it with what is known by then.

        Raises:
            TrialError: the program fails without any edit.
        """
        try:
            self._explore()
            self._confirm()
        except KeyboardInterrupt:
            self.outcome.is_interrupted = True
        found = self.outcome
        found.duration_s = self._clock() - self._begin_s
        found.waiting_share = float(np.mean(self._waiting)) if self._waiting else 0.0
        found.baseline_ns = float(np.mean([one.step_ns for one in self._baselines] or [0.0]))
        found.is_deterministic = self._is_deterministic()
        found.candidates.sort(key=lambda one: (one not in found.confirmed, one.mean))
        return found

    # Exploring

    def _explore(self) -> None:
        baseline = self._measure((), "the baseline")
        trial_s = self._durations_s[-1]
        # What may save most goes first; for the rest there is no time.
        most = max(2, int(EXPLORING * self._seconds / trial_s) - 2)
        self.outcome.not_tried = self._left[most:]
        self._left = self._left[:most]
        self.outcome.candidates = list(self._left)
        for number in range(_MOST_EXPLORING):
            round_s = (1 + len(self._left)) * trial_s
            if not self._left or (number and self._elapsed_s + round_s > EXPLORING * self._seconds):
                break
            if number:
                baseline = self._measure((), "the baseline")
            for candidate in self._shuffled(self._left):
                self._try(candidate, baseline)
            self._leave_out()
            if number and self._is_decided():
                break

    def _try(self, candidate: Candidate, baseline: TrialResult) -> None:
        try:
            measured = self._measure((candidate.made,), candidate.text)
        except TrialError as error:
            candidate.problem = str(error).partition("\n")[0]
            self._left.remove(candidate)
            return
        met = measured.finding.met.get(candidate.made.name)
        if (
            met is not None
            and not met.is_met
            and not candidate.edit.environment(candidate.made.value)
        ):
            candidate.problem = "the program did not make this call"
            self._left.remove(candidate)
            return
        candidate.ratios.append(math.log(measured.step_ns / baseline.step_ns))
        candidate.startup_ns.append(measured.finding.startup_ns - baseline.finding.startup_ns)
        candidate.same = min(candidate.same, self._same(measured.results))

    def _same(self, results: Results) -> Same:
        """How alike results are to those of the nearest baseline."""
        return min(alike(one, results) for one in self._results)

    def _leave_out(self) -> None:
        """Leave out what can't win any more, or not against another variant of the same edit."""
        if not self._left:
            return
        rounds = len(self._left[0].ratios)
        error = self._noise() / math.sqrt(rounds)
        best: dict[str, float] = {}
        for one in self._left:
            best[one.edit.name] = min(best.get(one.edit.name, math.inf), one.mean)
        self._left = [
            one
            for one in self._left
            if one.mean - _LIKELY * error <= -MARGIN
            and one.mean - best[one.edit.name] <= _LIKELY * math.sqrt(2) * error
            and (one.is_allowed or self._is_deterministic() is False)
        ]

    def _noise(self) -> float:
        """The standard deviation of a ratio's logarithm, of all candidates together."""
        tried = [one.ratios for one in self.outcome.candidates if len(one.ratios) > 1]
        freedom = sum(len(ratios) - 1 for ratios in tried)
        if not freedom:
            return _ASSUMED_NOISE
        squares = math.fsum(float(np.var(ratios)) * len(ratios) for ratios in tried)
        return math.sqrt(squares / freedom)

    def _is_decided(self) -> bool:
        error = self._noise() / math.sqrt(len(self._left[0].ratios)) if self._left else 0.0
        names = [one.edit.name for one in self._left]
        is_sure = all(one.mean + _LIKELY * error < -MARGIN for one in self._left)
        return is_sure and len(names) == len(set(names)) <= _FINALISTS

    # Confirming

    def _confirm(self) -> None:
        finalists = self._finalists()
        if not finalists:
            return
        left_s = self._seconds - self._elapsed_s
        trial_s = float(np.mean(self._durations_s))
        rounds = 0
        while finalists:
            sides = 1 + len(finalists) + (len(finalists) > 1)
            rounds = min(MOST_ROUNDS, int(left_s / (sides * trial_s)))
            if rounds >= FEWEST_ROUNDS or len(finalists) == 1:
                break
            finalists.pop()
        rounds = max(rounds, FEWEST_ROUNDS)
        sides_of: Sides = {(): [], **{(one,): [] for one in finalists}}
        if len(finalists) > 1:
            sides_of[tuple(finalists)] = []
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(sides_of) - 1)
        try:
            for done in range(rounds):
                self._confirm_round(sides_of, f"round {done + 1} of {rounds}")
                self.outcome.rounds = done + 1
        finally:  # after an interruption what is known counts, if it is enough to count
            # With fewer rounds than were decided on, the interval is wider, and as true.
            self._conclude(sides_of, confidence)

    def _finalists(self) -> list[Candidate]:
        """The best variant of each edit that is likely faster, the best first."""
        found: dict[str, Candidate] = {}
        for one in sorted(self._left, key=lambda one: one.mean):
            error = self._noise() / math.sqrt(len(one.ratios))
            if one.mean + error < -MARGIN / 2 and one.is_allowed:
                found.setdefault(one.edit.name, one)
        return list(found.values())[:_FINALISTS]

    def _confirm_round(self, sides_of: Sides, what: str) -> None:
        times: dict[tuple[Candidate, ...], float] = {}
        for side in self._shuffled(list(sides_of)):
            name = " and ".join(one.text for one in side) or "the baseline"
            try:
                measured = self._measure([one.made for one in side], f"{what}: {name}")
            except TrialError:
                if not side:
                    raise
                del sides_of[side]  # which worked until now, or works alone
                continue
            times[side] = measured.step_ns
            for one in side if len(side) == 1 else ():
                one.same = min(one.same, self._same(measured.results))
        for side, values in sides_of.items():
            values.append(times[side])

    def _conclude(
        self, sides_of: Mapping[tuple[Candidate, ...], Sequence[float]], confidence: float
    ) -> None:
        for side, times in sides_of.items():
            pairs = list(zip(times, sides_of[()], strict=False))
            if not side or len(pairs) < 2:
                continue
            change = RelativeChange.of([math.log(one / base) for one, base in pairs], confidence)
            if len(side) == 1:
                self.outcome.confirmed[side[0]] = change
            else:
                self.outcome.together = side, change

    # Trials

    def _measure(self, made: Sequence[MadeEdit], what: str) -> TrialResult:
        self._show(what, max(0.0, self._seconds - self._elapsed_s))
        began_s = self._clock()
        measured = self._runner.trial(made, self._plan)
        self._durations_s.append(self._clock() - began_s)
        self._waiting.append(measured.waiting_share)
        if not made:
            self._baselines.append(measured)
            self._results.append(measured.results)
        return measured

    def _is_deterministic(self) -> bool | None:
        first, *others_results = self._results
        others = [alike(first, one) for one in others_results]
        return None if not others or Same.UNKNOWN in others else Same.DIFFERENT not in others

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._begin_s

    def _shuffled(self, sides: Sequence[_Side]) -> list[_Side]:
        return self._random.sample(sides, len(sides))


def candidates_of(
    edits: Sequence[tuple[Edit, float, Sequence[object]]], met: Mapping[str, Met]
) -> Iterator[Candidate]:
    """Yield the edits that the program has a place for: the first variant of each, that which may
    save most first, then further variants.

    Args:
        edits: each with the largest share of the time that it may save, and its variants.
        met: by name, where each would be made.
    """
    found: list[tuple[int, Candidate]] = []
    for edit, reach, values in edits:
        where = met.get(edit.name)
        if where is None or not where.is_met:
            continue
        best = max((place.rank for place in where.places), default=0)
        places = tuple(place for place in where.places if place.rank == best)
        lines = tuple((place.file, place.line) for place in places) or None
        for number, value in enumerate(values):
            made = MadeEdit(edit.name, value, lines)
            found.append((number, Candidate(edit, made, reach, places)))
    yield from (one for _, one in sorted(found, key=lambda one: (one[0], -one[1].reach)))
