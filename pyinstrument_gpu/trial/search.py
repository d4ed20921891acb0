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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import TypeAlias

import numpy as np

from pyinstrument_gpu.analysis.compare import CONFIDENCE
from pyinstrument_gpu.analysis.contention import LARGE_SHARE
from pyinstrument_gpu.analysis.inference import t_quantile
from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.trial.child import MadeEdit, Met
from pyinstrument_gpu.trial.edits.edit import CallPlace, Changes, Edit, Value
from pyinstrument_gpu.trial.results import Results, Same, alike
from pyinstrument_gpu.trial.trials import Runner, TrialPlan, TrialResult

MARGIN = 0.01
"""A gain up to this share is none."""
EXPLORING, EXPLORING_LONGER = 0.45, 0.7
"""The part of the time in which it is found what may win: the second while nothing likely is."""
MOST_ROUNDS, FEWEST_ROUNDS = 8, 4
"""Of confirming."""
_MOST_EXPLORING = 8
_FINALISTS = 4
_ASSUMED_NOISE = 0.05
"""Of the logarithm of a ratio, where a single round says nothing of it."""
_LIKELY = 2.0
"""How many standard errors away something no longer counts as possible."""


@dataclass(eq=False)
class Candidate:
    """An edit with its variant.

    Attributes:
        reach: the largest share of the time that it may save.
        places: where the program would be edited.
        ratios: in exploring, the logarithm of its time over that of the baseline, by round.
        startup_ns: how much longer it took to the end of the warm-up, likewise.
        problem: why it could not be tried to the end.
        same: the results of that trial which are the least like those of the baseline.
        is_refused: whether these differ more than is allowed.
    """

    edit: Edit
    made: MadeEdit
    reach: float
    places: tuple[CallPlace, ...] = ()
    ratios: list[float] = field(default_factory=list)
    startup_ns: list[int] = field(default_factory=list)
    problem: str = ""
    same: Same = Same.UNKNOWN
    is_refused: bool = False

    @property
    def text(self) -> str:
        return self.edit.text(self.made.value)

    @property
    def mean(self) -> float:
        return float(np.mean(self.ratios)) if self.ratios else 0.0


Side: TypeAlias = tuple[Candidate, ...]
"""What is edited at once; nothing for the baseline."""


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
        confirmed: by what was edited, the change in runs of its own; several edits are all that
            were confirmed.
        together: the results of those several beside those of the baseline.
        rounds, steps: of confirming, and of each trial.
        baseline_ns: the mean time per step.
        waiting_share: of the time, in which the loop waited for a processor.
        is_deterministic: whether the baseline has the same results each time; None if unknown.
        not_tried: edits for which there was no time.
        problem: why the search ended before it was over.
    """

    candidates: list[Candidate] = field(default_factory=list)
    confirmed: dict[Side, RelativeChange] = field(default_factory=dict)
    together: Same = Same.UNKNOWN
    rounds: int = 0
    steps: int = 0
    baseline_ns: float = 0.0
    waiting_share: float = 0.0
    is_deterministic: bool | None = None
    not_tried: list[Candidate] = field(default_factory=list)
    problem: str = ""
    duration_s: float = 0.0

    def change(self, one: Candidate) -> RelativeChange | None:
        """Return the change of an edit alone, if it was confirmed."""
        return self.confirmed.get((one,))

    @property
    def winners(self) -> list[Candidate]:
        """The edits that make the program faster by themselves, the best first."""
        found = [
            side[0]
            for side, change in self.confirmed.items()
            if len(side) == 1 and change.is_faster and not side[0].is_refused
        ]
        return sorted(found, key=lambda one: self.confirmed[one,].share)

    @property
    def best(self) -> Side:
        """The edits to make, which were measured as they are: all winners at once, if that is
        faster than the best one and changes the results no more than each of them; or that one."""
        winners = self.winners
        at_once = next((side for side in self.confirmed if len(side) > 1), ())
        if at_once and set(at_once) == set(winners):
            change = self.confirmed[at_once]
            expected = max(one.same for one in winners)
            is_known = self.is_deterministic is False or self.together <= expected
            if change.share < self.confirmed[winners[0],].share and change.is_faster and is_known:
                return tuple(winners)
        return tuple(winners[:1])

    @property
    def is_contended(self) -> bool:
        return self.waiting_share > LARGE_SHARE


class Search:
    """A search.

    Args:
        candidates: what may be tried, that which may save most first.
        looked: the results of a trial of the program without any edit.
        seconds: how long it may take.
        allowed: what an edit may change of the results.
        show: called with what is being done, and the seconds that are left.
        random: decides on the order of trials.
        clock: seconds.
    """

    def __init__(
        self,
        runner: Runner,
        plan: TrialPlan,
        candidates: Sequence[Candidate],
        looked: Results,
        seconds: float,
        allowed: Changes = Changes.LAST_DIGITS,
        show: Callable[[str, float], None] = lambda what, left_s: None,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        t_quantile(CONFIDENCE, 1)  # a missing package is reported before anything runs
        self._runner = runner
        self._plan = plan
        self._left = list(candidates)
        self._seconds = seconds
        self._allowed = allowed
        self._show = show
        self._random = random or SystemRandom()
        self._clock = clock
        self._begin_s = clock()
        self._trials: list[TrialResult] = []
        self._baselines_ns: list[float] = []
        self._results = [looked]
        self._confirming: dict[Side, list[float]] = {}
        self.outcome = SearchOutcome(steps=plan.steps)

    def run(self) -> SearchOutcome:
        """Search. Ctrl-C, a baseline that fails or a full disk end it with what is known by then.

        Raises:
            TrialError: the program fails without any edit, before anything is known.
        """
        found = self.outcome
        try:
            self._explore()
            self._confirm()
        except KeyboardInterrupt:
            found.problem = "interrupted"
        except (TrialError, OSError) as error:
            if not any(one.ratios for one in found.candidates):
                raise
            found.problem = str(error).partition("\n")[0]
        self._conclude()
        found.duration_s = self._clock() - self._begin_s
        if self._trials:
            found.waiting_share = float(np.mean([one.waiting_share for one in self._trials]))
            found.baseline_ns = float(np.mean(self._baselines_ns or [0.0]))
        found.is_deterministic = self._is_deterministic()
        return found

    # Exploring

    def _explore(self) -> None:
        began_s = self._elapsed_s
        for number in range(_MOST_EXPLORING):
            if not number:
                self._round([()], "exploring")  # which says how long a trial is
                trial_s = self._elapsed_s - began_s
                most = max(1, int(EXPLORING * self._seconds / trial_s) - 2)
                self.outcome.not_tried = self._left[most:]
                self._left = self._left[:most]
                self.outcome.candidates = list(self._left)
            round_s = (1 + len(self._left)) * trial_s
            share = EXPLORING if number and self._finalists() else EXPLORING_LONGER
            is_late = self._elapsed_s + round_s > share * self._seconds
            if not self._left or (number and is_late):
                break
            times = self._round([(), *((one,) for one in self._left)], "exploring")
            for one in self._left:
                if (one,) in times:
                    one.ratios.append(math.log(times[one,] / times[()]))
            self._leave_out()
            if number and self._is_decided():
                break

    def _leave_out(self) -> None:
        """Leave out what fails, can't win any more, or not against another variant of the same
        edit."""
        left = [one for one in self._left if not one.problem and not one.is_refused]
        error = {one: self._noise() / math.sqrt(len(one.ratios)) for one in left}
        best: dict[str, float] = {}
        for one in left:
            best[one.edit.name] = min(best.get(one.edit.name, math.inf), one.mean)
        self._left = [
            one
            for one in left
            if one.mean - _LIKELY * error[one] <= -MARGIN
            and one.mean - best[one.edit.name] <= _LIKELY * math.sqrt(2) * error[one]
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
        left_s = self._seconds - self._elapsed_s
        trial_s = self._elapsed_s / max(len(self._trials), 1)
        rounds = 0
        while finalists:
            sides = 1 + len(finalists) + (len(finalists) > 1)
            rounds = min(MOST_ROUNDS, int(left_s / (sides * trial_s)))
            if rounds >= FEWEST_ROUNDS or len(finalists) == 1:
                break
            finalists.pop()
        if not finalists:
            return
        at_once = [tuple(finalists)] if len(finalists) > 1 else []
        self._confirming = {side: [] for side in [(), *((one,) for one in finalists), *at_once]}
        for number in range(max(rounds, FEWEST_ROUNDS)):
            # Time decides, not what was found: with fewer rounds intervals are wider, and as true.
            if number and self._elapsed_s > self._seconds:
                break
            text = f"round {number + 1} of {max(rounds, FEWEST_ROUNDS)}"
            times = self._round(list(self._confirming), text)
            for side, side_ns in self._confirming.items():
                side_ns.append(times.get(side, math.nan))
            self.outcome.rounds = number + 1

    def _finalists(self) -> list[Candidate]:
        """The best variant of each edit that is likely faster, the best first."""
        found: dict[str, Candidate] = {}
        for one in sorted(self._left, key=lambda one: one.mean):
            error = self._noise() / math.sqrt(len(one.ratios))
            if one.mean + error < -MARGIN / 2:
                found.setdefault(one.edit.name, one)
        return list(found.values())[:_FINALISTS]

    def _conclude(self) -> None:
        """Say what the rounds of confirming show. A side that failed in one of them has no
        figure."""
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(self._confirming) - 1)
        for side, times in self._confirming.items():
            if side and self.outcome.rounds >= 2 and not any(map(math.isnan, times)):
                ratios = [
                    math.log(one / base)
                    for one, base in zip(times, self._confirming[()], strict=True)
                ]
                self.outcome.confirmed[side] = RelativeChange.of(ratios, confidence)

    # Trials

    def _round(self, sides: Sequence[Side], what: str) -> dict[Side, float]:
        """Run each side once, in random order, and return the times per step."""
        times: dict[Side, float] = {}
        startup_ns: dict[Side, int] = {}
        for side in self._random.sample(sides, len(sides)):
            name = " and ".join(one.text for one in side) or "the program as it is"
            self._show(f"{what}: {name}", max(0.0, self._seconds - self._elapsed_s))
            try:
                found = self._runner.trial([one.made for one in side], self._plan)
                if not all(one.is_met for one in found.data.met):
                    raise TrialError("the program did not make this call")
            except TrialError as error:
                if not side:
                    raise
                if len(side) == 1:
                    side[0].problem = str(error).partition("\n")[0]
                continue
            self._trials.append(found)
            times[side], startup_ns[side] = found.step_ns, found.data.startup_ns
            if not side:
                self._baselines_ns.append(found.step_ns)
                self._results.append(found.data.results)
            else:
                self._note(side, found.data.results)
        for side in times:
            if len(side) == 1:
                side[0].startup_ns.append(startup_ns[side] - startup_ns[()])
        return times

    def _note(self, side: Side, results: Results) -> None:
        """Note how alike results are to those of the nearest baseline."""
        same = min(alike(one, results) for one in self._results)
        if len(side) > 1:
            self.outcome.together = _least(self.outcome.together, same)
            return
        one = side[0]
        one.same = _least(one.same, same)
        may_differ = self._allowed is Changes.RESULTS or one.edit.changes is Changes.DRAWS
        is_known = self._is_deterministic() is not False
        one.is_refused = one.same is Same.DIFFERENT and is_known and not may_differ

    def _is_deterministic(self) -> bool | None:
        first, *others = self._results
        found = [alike(first, one) for one in others]
        return None if not found or Same.UNKNOWN in found else Same.DIFFERENT not in found

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._begin_s


def _least(before: Same, now: Same) -> Same:
    """The less alike of two; at first nothing is known."""
    return now if before is Same.UNKNOWN else max(before, now)


def candidates_of(
    edits: Sequence[tuple[Edit, float, Sequence[tuple[Value, Met]]]],
) -> Iterator[Candidate]:
    """Yield the edits that the program has a place for: the first variant of each, that which may
    save most first, then further variants.

    Args:
        edits: each with the largest share of the time that it may save, and its variants with
            where they would be made.
    """
    found: list[tuple[int, Candidate]] = []
    for edit, reach, values in edits:
        for number, (value, where) in enumerate(values):
            if where.is_met:
                best = max((place.rank for place in where.places), default=0)
                places = tuple(place for place in where.places if place.rank == best)
                lines = tuple((place.file, place.line) for place in places) or None
                made = MadeEdit(edit.name, value, lines)
                found.append((number, Candidate(edit, made, reach, places)))
    yield from (one for _, one in sorted(found, key=lambda one: (one[0], -one[1].reach)))
