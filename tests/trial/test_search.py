# SPDX-License-Identifier: Apache-2.0
"""Which edits a search tries, and what it calls a winner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.trial.child import MadeEdit
from pyinstrument_gpu.trial.edits.edit import Changes
from pyinstrument_gpu.trial.results import Same
from pyinstrument_gpu.trial.search import FEWEST_ROUNDS, Candidate, Search, SearchOutcome
from pyinstrument_gpu.trial.trials import TrialPlan, TrialResult
from tests.helpers.scripted_trials import PLAN, ScriptedTrials, candidate

TEN_MINUTES_S = 600.0


def searched(
    trials: ScriptedTrials,
    candidates: Sequence[Candidate],
    seed: int = 0,
    seconds: float = TEN_MINUTES_S,
) -> SearchOutcome:
    looked = ScriptedTrials({}).trial((), PLAN, is_dry=True).data.results
    search = Search(
        trials, PLAN, candidates, looked, seconds, random=Random(seed), clock=trials.clock
    )
    return search.run()


def normal(random: Random, spread: float) -> Callable[[int], float]:
    return lambda number: random.gauss(0.0, spread)


def bursts(random: Random) -> Callable[[int], float]:
    """A shared machine: a tenth of the trials take up to twice as long."""
    return lambda number: random.gauss(0.0, 0.02) + (random.random() < 0.1) * random.random() * 0.7


def test_the_best_edits_win_and_their_figures_come_from_fresh_runs() -> None:
    trials = ScriptedTrials({"a=1": 0.6, "b=1": 0.9, "c=1": 1.3}, normal(Random(1), 0.01))
    found = searched(trials, [candidate("a"), candidate("b"), candidate("c"), candidate("d")])
    assert [one.text for one in found.winners] == ["a=1", "b=1"]
    best = found.confirmed[found.winners[0],]
    assert best.low is not None and best.high is not None
    assert best.low < -0.4 < best.high
    assert [one.text for one in found.best] == ["a=1", "b=1"]
    change = found.confirmed[found.best]
    assert change.low is not None and change.high is not None
    assert change.low < 0.6 * 0.9 - 1 < change.high
    confirming = trials.made[-4 * found.rounds :]
    assert confirming.count(()) == confirming.count(("a=1",)) == found.rounds


def test_of_variants_of_an_edit_the_best_is_confirmed() -> None:
    trials = ScriptedTrials({"a=1": 0.8, "a=2": 0.5, "a=3": 0.9}, normal(Random(1), 0.01))
    found = searched(trials, [candidate("a", value) for value in (1, 2, 3)])
    assert [one.text for one in found.winners] == ["a=2"]
    assert len(found.confirmed) == 1


@pytest.mark.parametrize("noise", [lambda random: normal(random, 0.03), bursts])
def test_false_winners_are_rare(noise: Callable[[Random], Callable[[int], float]]) -> None:
    false = 0
    for seed in range(200):
        trials = ScriptedTrials({}, noise(Random(seed)))
        found = searched(trials, [candidate(name) for name in "abcdefgh"], seed)
        false += bool(found.winners)
    assert false <= 5, false


def test_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(200):
        trials = ScriptedTrials({"a=1": 0.8}, normal(Random(seed), 0.05))
        found = searched(trials, [candidate("a"), candidate("b")], seed)
        changes = [found.confirmed[one,] for one in found.winners if one.text == "a=1"]
        assert changes
        held += all(
            one.low is not None and one.high is not None and one.low <= -0.2 <= one.high
            for one in changes
        )
    assert held >= 180, held  # of 3,000 cases it is 95.5 %


def test_what_is_slower_is_left_out_after_a_round() -> None:
    trials = ScriptedTrials({"a=1": 1.5, "b=1": 0.7}, normal(Random(1), 0.01))
    searched(trials, [candidate("a"), candidate("b")])
    assert trials.made.count(("a=1",)) == 1


def test_an_edit_that_changes_the_results_wins_only_if_it_says_so() -> None:
    for changes, wins in ((Changes.NOTHING, False), (Changes.DRAWS, True)):
        trials = ScriptedTrials({"a=1": 0.5}, changing=["a=1"])
        one = candidate("a", changes=changes)
        found = searched(trials, [one])
        assert bool(found.winners) is wins
        assert one.same is Same.DIFFERENT
        assert found.is_deterministic is True


def test_a_program_of_other_results_each_time_is_said_to_be_one() -> None:
    found = searched(ScriptedTrials({}, draws=Random(1)), [candidate("a")])
    assert found.is_deterministic is False


def test_an_edit_that_fails_is_named_and_the_search_goes_on() -> None:
    trials = ScriptedTrials({"b=1": 0.5}, failing=["a=1"])
    failing = candidate("a")
    found = searched(trials, [failing, candidate("b")])
    assert failing.problem == "it ended with exit code 1"
    assert [one.text for one in found.winners] == ["b=1"]


def test_a_program_that_fails_by_itself_is_an_error() -> None:
    class Failing(ScriptedTrials):
        def trial(self, made, plan, is_dry=False):  # type: ignore[no-untyped-def]
            raise TrialError("it ended with exit code 1")

    with pytest.raises(TrialError, match="exit code 1"):
        searched(Failing({}), [candidate("a")])


def test_time_is_kept_and_what_there_was_none_for_is_named() -> None:
    trials = ScriptedTrials({"a=1": 0.5}, normal(Random(1), 0.01), trial_s=20.0)
    names = "abcdefghijklmnopqrst"
    found = searched(trials, [candidate(name) for name in names], seconds=TEN_MINUTES_S)
    assert found.not_tried
    assert len(found.candidates) + len(found.not_tried) == len(names)
    assert found.rounds >= FEWEST_ROUNDS
    assert trials.now_s <= 1.05 * TEN_MINUTES_S


def test_a_program_of_other_results_each_time_can_gain_all_the_same() -> None:
    trials = ScriptedTrials({"a=1": 0.5}, normal(Random(1), 0.01), draws=Random(1))
    found = searched(trials, [candidate("a", changes=Changes.LAST_DIGITS)])
    assert [one.text for one in found.best] == ["a=1"]


class Interfering(ScriptedTrials):
    """Two edits that help alone, and not together.

    Args:
        instead: what both together do: a factor, or an error.
    """

    def __init__(self, instead: float | None) -> None:
        super().__init__({"a=1": 0.7, "b=1": 0.8}, normal(Random(1), 0.01))
        self._instead = instead

    def trial(self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False) -> TrialResult:
        found = super().trial(made, plan, is_dry)
        if len(made) < 2:
            return found
        if self._instead is None:
            raise TrialError("it ended with exit code 1")
        return replace(found, step_ns=1e7 * self._instead)


@pytest.mark.parametrize("instead", [None, 1.2, 0.75])
def test_edits_that_do_not_help_together_are_not_advised_together(instead: float | None) -> None:
    found = searched(Interfering(instead), [candidate("a"), candidate("b")])
    assert [one.text for one in found.winners] == ["a=1", "b=1"]
    assert [one.text for one in found.best] == ["a=1"]


def test_edits_that_change_the_results_together_are_not_advised_together() -> None:
    class Odd(ScriptedTrials):
        def trial(
            self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False
        ) -> TrialResult:
            self._changing = ["a=1", "b=1"] if len(made) > 1 else []
            return super().trial(made, plan, is_dry)

    found = searched(Odd({"a=1": 0.7, "b=1": 0.8}), [candidate("a"), candidate("b")])
    assert found.together is Same.DIFFERENT
    assert [one.text for one in found.best] == ["a=1"]


def test_the_least_alike_results_count() -> None:
    class Racing(ScriptedTrials):
        def trial(
            self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False
        ) -> TrialResult:
            self._changing = ["a=1"] if self.made.count(("a=1",)) == 2 else []
            return super().trial(made, plan, is_dry)

    one = candidate("a")
    found = searched(Racing({"a=1": 0.5}), [one])
    assert one.same is Same.DIFFERENT and one.is_refused and not found.best


def test_a_baseline_that_fails_late_ends_it_with_what_is_known() -> None:
    class Late(ScriptedTrials):
        def trial(
            self, made: Sequence[MadeEdit], plan: TrialPlan, is_dry: bool = False
        ) -> TrialResult:
            if len(self.made) > 15 and not made:
                raise TrialError("it ended with exit code 9\nlast lines")
            return super().trial(made, plan, is_dry)

    found = searched(Late({"a=1": 0.5}, normal(Random(1), 0.01)), [candidate("a")])
    assert found.problem == "it ended with exit code 9"
    assert [one.text for one in found.best] == ["a=1"]


def test_time_that_is_up_ends_the_rounds() -> None:
    trials = ScriptedTrials({"a=1": 0.5}, normal(Random(1), 0.01), trial_s=60.0)
    found = searched(trials, [candidate("a")], seconds=200)
    assert trials.now_s <= 480
    assert found.rounds < FEWEST_ROUNDS


def test_ctrl_c_gives_what_is_known() -> None:
    whole = ScriptedTrials({"a=1": 0.5}, normal(Random(1), 0.01))
    searched(whole, [candidate("a")])
    ended = ScriptedTrials(
        {"a=1": 0.5}, normal(Random(1), 0.01), interrupted_at=len(whole.made) - 3
    )
    found = searched(ended, [candidate("a")])
    assert found.problem == "interrupted"
    assert [one.text for one in found.winners] == ["a=1"]
    at_once = searched(ScriptedTrials({}, interrupted_at=0), [candidate("a")])
    assert at_once.problem == "interrupted" and not at_once.winners
