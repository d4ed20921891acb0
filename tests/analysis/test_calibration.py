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

GOALS: dict[str, tuple[float, float, Callable[[Calibration], Share]]] = {
    "at most is never beaten": (0, 0, Calibration.beaten),
    "the range of a sync": (0.9, 1, lambda found: found.covered("sync")),
    "the range of all syncs": (0.9, 1, lambda found: found.covered("all syncs")),
    "the range of copies": (0.9, 1, lambda found: found.covered("copies")),
    "the range of data": (0.9, 1, lambda found: found.covered("data")),
    "the range of launches": (0.9, 1, lambda found: found.covered("launches")),
    "all ranges": (0.95, 1, Calibration.covered),
    "likely where it is told": (0.9, 1, Calibration.close_told),
    "little worthless advice": (0, 0.03, Calibration.worthless),
    "the best first": (0.85, 1, Calibration.best_told_first),
    "little that is not mentioned": (0, 0.03, Calibration.unmentioned),
    "seldom nothing at all": (0, 0.05, Calibration.speechless),
}
"""The lowest and the highest share that will do."""


@pytest.mark.parametrize(
    ("of_each_family", "seed"),
    [
        pytest.param(1, 0, id="few"),
        pytest.param(70, 100, id="many", marks=pytest.mark.slow),
    ],
)
def test_how_often_savings_and_advice_are_right(of_each_family: int, seed: int) -> None:
    programs = calibration(of_each_family * len(FAMILIES), seed)
    for goal, (lowest, highest, share_of) in GOALS.items():
        share = share_of(programs)
        assert share.of, goal
        assert lowest <= share.share <= highest, "\n".join([goal, str(share), *share.worst[:10]])
