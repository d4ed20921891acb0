# SPDX-License-Identifier: Apache-2.0
"""Savings and advice against simulated programs, in which the truth is known: how often they may be
wrong.

The goals are for all programs together, whether or not what a claim rests on holds in them. Of few
programs a share is known to a few per cent only, but the programs are always the same.
"""

from collections.abc import Callable

import pytest

from tests.helpers.calibration import Calibration, Share, calibration
from tests.helpers.simulator.families import FAMILIES

_FEW = 5 * len(FAMILIES)
_MANY = 70 * len(FAMILIES)


@pytest.fixture(scope="module")
def few() -> Calibration:
    return calibration(_FEW, seed=0)


@pytest.fixture(scope="module")
def many() -> Calibration:
    return calibration(_MANY, seed=100)


Goal = Callable[[Calibration], None]


def _at_least(least: float, found: Share) -> None:
    assert found.share >= least, "\n".join([str(found), *found.worst[:10]])


def _at_most(most: float, found: Share) -> None:
    assert found.share <= most, "\n".join([str(found), *found.worst[:10]])


GOALS: dict[str, Goal] = {
    "at most is never beaten": lambda found: _at_most(0, found.beaten()),
    "the range of a sync": lambda found: _at_least(0.9, found.covered("sync")),
    "the range of all syncs": lambda found: _at_least(0.9, found.covered("all syncs")),
    "the range of copies": lambda found: _at_least(0.9, found.covered("copies")),
    "the range of data": lambda found: _at_least(0.9, found.covered("data")),
    "the range of launches": lambda found: _at_least(0.9, found.covered("launches")),
    "likely of data": lambda found: _at_least(0.8, found.close("data")),
    "likely of a sync where it is told": lambda found: _at_least(0.7, found.close_told("sync")),
    "little worthless advice": lambda found: _at_most(0.05, found.worthless()),
    "the best first": lambda found: _at_least(0.85, found.best_told_first()),
    "little that is not mentioned": lambda found: _at_most(0.03, found.unmentioned()),
}


@pytest.mark.parametrize("goal", GOALS)
def test_of_few_programs(few: Calibration, goal: str) -> None:
    GOALS[goal](few)


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
def test_of_many_programs(many: Calibration, goal: str) -> None:
    GOALS[goal](many)
