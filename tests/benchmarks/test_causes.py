# SPDX-License-Identifier: Apache-2.0
"""The rule by which reports get their points in the benchmark of causes, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.causes.scoring import (
    Truth,
    first_advice,
    headline,
    is_named,
    largest_phase,
    places,
    points,
    unmarked,
)
from benchmarks.causes.table import CAUSES, PROGRAMS

REPORT = """\
train.py, 60 steps in 6.09 s, torch 2.13.0+cpu, no GPU, 1 loader worker
{verdict}

ms per step     mean   p95    %
--------------  ----  ----  ---
data            17.2  17.0   95  ###################
forward          0.2   0.3    1
--------------  ----  ----  ---
step            18.0  17.9  100

Worth trying
1. {advice}

Python in data: 100% train.py:26
"""
SLOW = Truth("", r"\bdata\b", ["workers"], "", frozenset({17}), frozenset({"sharpen"}))


def report(verdict: str, advice: str = "nothing") -> str:
    return REPORT.format(verdict=verdict, advice=advice)


@pytest.mark.parametrize(
    ("verdict", "advice", "expected"),
    [
        ("A step takes 18 ms", "Make f (a.py:3) twice as fast (saves 5% to 9%)", "Make f"),
        ("A step takes 18 ms", "Use single precision: make it float32", "Use single precision"),
    ],
)
def test_the_first_advice_is_without_its_numbers(verdict: str, advice: str, expected: str) -> None:
    assert first_advice(report(verdict, advice)) == expected


def test_without_advice_it_is_the_phase_that_is_named() -> None:
    text = report("A step takes 18 ms, of which the host spends 95% in data (f, a.py:1).")
    assert first_advice(text.partition("Worth")[0]) == "data"


@pytest.mark.parametrize(
    ("verdict", "advice", "expected"),
    [
        ("95% in data (all of it in sharpen)", "", 2),
        ("A step takes 18 ms", "Make it twice as fast (train.py:17)", 2),
        ("A step takes 18 ms", "Make it twice as fast (train.py:15-20)", 2),
        (
            "A step takes 18 ms",
            "Use more loader workers",
            1,
        ),  # its own, and the largest row is data
        ("A step takes 18 ms of data", "Save checkpoints half as often", -2),
        # Another cause behind the right one is no fault.
        ("95% in data (sharpen, train.py:17)", "Save checkpoints half as often", 2),
        ("95% in data; fewer checkpoints would not help", "", 1),
    ],
)
def test_points_are_those_of_what_is_named_first(verdict: str, advice: str, expected: int) -> None:
    assert points(SLOW, report(verdict, advice)) == expected


def test_silence_has_no_points_and_harm_has_less() -> None:
    fewer = Truth("fewer workers", "optimizer", ["workers"], "more (?:loader )?workers")
    assert points(fewer, report("A step takes 18 ms")) == 0
    assert points(fewer, report("Use fewer workers")) == 2
    assert points(fewer, report("Use fewer workers", "Use more loader workers")) == -2


def test_a_word_in_a_name_of_a_file_or_a_function_names_nothing() -> None:
    padding = Truth(r"\bpad", "slow")
    assert not is_named(padding, "it is in pad.py:3")
    assert is_named(padding, "pad less")


def test_the_headline_is_the_verdict_and_what_is_worth_trying() -> None:
    text = report("A step takes 18 ms.", "Use more loader workers")
    assert headline(text) == "A step takes 18 ms. Worth trying 1. Use more loader workers"
    assert headline("no report") == ""
    assert largest_phase(text) == "data"


def test_places_are_all_lines_of_a_marked_statement_and_its_function(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "def sharpen(x):\n    return sum(\n        x\n    )  # cause\n\nsharpen([1])\n"
    )
    assert places(program) == (frozenset({2, 3, 4}), frozenset({"sharpen"}))
    assert "cause" not in unmarked(program)


def test_each_program_has_a_row_and_each_row_a_program_with_a_twin() -> None:
    names = [one.name for one in CAUSES]
    assert sorted(names) == sorted(
        path.stem for path in PROGRAMS.glob("*.py") if path.stem != "setting"
    )
    assert len(names) >= 60
    for cause in CAUSES:
        text = cause.program.read_text()
        assert "FIXED" in text or cause.before or cause.environment or "other" in cause.name
        # What has no words is named by its place.
        assert cause.words or cause.truth.lines
