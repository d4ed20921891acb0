# SPDX-License-Identifier: Apache-2.0
"""What `try` prints."""

from __future__ import annotations

import json
from random import Random

from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.trial import summary
from pyinstrument_gpu.trial.patch import Patch
from pyinstrument_gpu.trial.search import Search, SearchOutcome
from tests.helpers.scripted_trials import PLAN, ScriptedTrials, candidate


def found(trials: ScriptedTrials, *names: str, seconds: float = 600) -> SearchOutcome:
    looked = ScriptedTrials({}).trial((), PLAN, is_dry=True).data.results
    candidates = [candidate(name) for name in names]
    search = Search(trials, PLAN, candidates, looked, seconds, random=Random(2), clock=trials.clock)
    return search.run()


def text(outcome: SearchOutcome, patch: Patch | None = None) -> str:
    parts = summary.parts(outcome, "A step takes 10 ms.", patch or Patch(), "try.diff", place)
    return " ".join(for_terminal(parts).split())


def place(one: object) -> str:
    return "train.py:7"


def noise(spread: float) -> ScriptedTrials:
    random = Random(3)
    factors = {"fast=1": 0.5, "also=1": 0.8, "slow=1": 1.2}
    return ScriptedTrials(
        factors, lambda number: random.gauss(0, spread), failing=["wrong=1"], changing=["odd=1"]
    )


def test_winners_come_first_with_their_interval() -> None:
    outcome = found(noise(0.01), "slow", "same", "also", "fast", "wrong")
    shown = text(outcome, Patch(b"diff", ["fast"]))
    names = ("fast=1 -", "also=1 -", "same=1 no difference", "slow=1 slower")
    assert sorted(names, key=shown.index) == list(names)
    assert "identical train.py:7" in shown
    assert "wrong=1 failed: it ended with exit code 1" in shown
    assert "Together -" in shown and "8 fresh runs of each side, 30 steps each" in shown
    assert "A patch with these edits, but for also=1: try.diff (git apply try.diff)" in shown
    assert "There is no patch: no call in your files could be rewritten" in text(outcome)


def test_nothing_found_is_said() -> None:
    shown = text(found(noise(0.01), "same", "other"))
    assert "Nothing that was tried makes it faster for certain" in shown
    assert "There is nothing to try" in text(found(noise(0.01)))


def test_what_there_was_no_time_for_is_named() -> None:
    outcome = found(noise(0.01), *"abcdefghijklmno", seconds=60)
    assert "There was no time for:" in text(outcome)


def test_what_could_not_be_confirmed_in_time_is_said() -> None:
    trials = ScriptedTrials({"fast=1": 0.5}, trial_s=60)
    shown = text(found(trials, "fast", seconds=120))
    assert "fast=1 about -50.0 %, not confirmed" in shown
    assert "There was no time to confirm what seemed faster. Give more --minutes" in shown


def test_json_has_what_the_terminal_says() -> None:
    outcome = found(noise(0.01), "slow", "fast")
    facts = json.loads(json.dumps(summary.facts(outcome, "verdict", Patch(b"diff", ["fast"]))))
    assert [(one["name"], one["is_winner"]) for one in facts["tried"]] == [
        ("fast", True),
        ("slow", False),
    ]
    assert facts["tried"][0]["confirmed"]["high"] < -0.4
    assert facts["patch"] == "diff" and facts["rounds"] == 8
