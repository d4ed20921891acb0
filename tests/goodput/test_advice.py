# SPDX-License-Identifier: Apache-2.0
"""What would have saved time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyinstrument_gpu.goodput.advice import (
    _interval_of_count,
    advice,
    best_interval_ns,
    checkpoint_interval,
    lost_factor,
)
from pyinstrument_gpu.goodput.life import JobLife
from tests.goodput.lives import MS, STEP_NS, attempt, life_of
from tests.goodput.test_life import hung


@pytest.mark.parametrize("cost", [1e-6, 1e-3, 0.1, 1.0, 5.0])
def test_the_best_interval_loses_least(cost: float) -> None:
    best = best_interval_ns(cost * 1e12, 1e12) / 1e12
    others = best * np.array([0.9, 0.99, 1.01, 1.1])
    assert all(lost_factor(best, cost, 1.0) < lost_factor(one, cost, 1.0) for one in others)


def test_its_first_order_is_youngs() -> None:
    assert best_interval_ns(1.0, 1e8) == pytest.approx((2e8) ** 0.5, rel=1e-3)


def test_it_loses_least_when_failures_are_simulated() -> None:
    """Lives from a checkpoint to a failure, in which each interval counts once its checkpoint is
    written; the same are used for each interval."""
    lives = -np.log1p(-(np.arange(200_000) + 0.5) / 200_000)
    cost = 0.02
    best = best_interval_ns(cost, 1.0)

    def done(interval: float) -> float:
        return interval * float(np.floor(lives / (interval + cost)).mean())

    assert done(best) == pytest.approx(1 / lost_factor(best, cost, 1.0), rel=1e-3)
    assert done(best) > max(done(0.8 * best), done(1.25 * best))


def test_interval_of_a_count() -> None:
    """As Garwood's table has it."""
    for count, low, high in ((1, 0.0253, 5.572), (3, 0.619, 8.767), (10, 4.795, 18.39)):
        assert _interval_of_count(count) == pytest.approx((low, high), rel=1e-3)


def written(folder: Path, every: int, failures: int = 3) -> JobLife:
    """A job whose attempts write a checkpoint of 10 ms after so many steps."""
    steps = 400
    is_written = np.arange(steps) % every == every - 1
    phases = {
        "forward": [STEP_NS] * steps,
        "checkpoint": np.where(is_written, 10 * MS, 0).tolist(),
    }
    attempts = [
        attempt(number * 60_000, steps, start=number * 300, phases=phases)
        for number in range(failures + 1)
    ]
    return life_of(folder, *attempts)


def test_checkpoints_too_often(tmp_path: Path) -> None:
    life = written(tmp_path, every=4)
    found = checkpoint_interval(life)
    assert found is not None and not found.fits
    assert (found.written, found.failures) == (400, 4)
    assert (found.cost_ns, found.interval_ns) == (10 * MS, 4 * STEP_NS)
    assert found.best_ns == best_interval_ns(found.cost_ns, found.between_failures_ns)
    assert found.best_low_ns < found.best_ns < found.best_high_ns
    [one] = [one for one in advice(life, found) if one.about.startswith("Write a checkpoint")]
    totals_ns = life.division.totals_ns
    assert 0 < one.low_ns < one.high_ns <= sum(totals_ns.values())
    assert "now it is every 40.0 ms; one takes 10.0 ms, and 4 failures in" in one.evidence


def test_an_interval_that_fits_needs_no_advice(tmp_path: Path) -> None:
    life = written(tmp_path, every=50)
    found = checkpoint_interval(life)
    assert found is not None and found.fits
    assert not any("checkpoint" in one.about for one in advice(life, found))


def test_without_failures_or_checkpoints_no_interval_is_known(tmp_path: Path) -> None:
    assert checkpoint_interval(life_of(tmp_path, attempt(0, 50))) is None
    finished = attempt(0, 50, is_killed=False)
    assert checkpoint_interval(life_of(tmp_path, finished)) is None


def test_pauses_and_starts_from_as_quick_as_the_quickest(tmp_path: Path) -> None:
    life = life_of(tmp_path, attempt(0, 9), attempt(1000, 9, start=9), attempt(5000, 9, start=18))
    found = {one.about: one for one in advice(life, None)}
    pauses = found["Start the next attempt sooner"]
    first, second = 1000 - 195, 4000 - 195
    assert (pauses.low_ns, pauses.high_ns) == ((second - first) * MS, (first + second) * MS)
    starts = found["Start faster"]
    assert (starts.low_ns, starts.high_ns) == (0, 300 * MS)


def test_what_a_hang_has_cost(tmp_path: Path) -> None:
    """From what came behind the watchdog's limit to all of it."""
    run = attempt(0, 30, tail_ms=90_000, parts=hung(310 * MS), watchdog_ns=30 * 10**9)
    [one] = [one for one in advice(life_of(tmp_path, run), None) if "hang" in one.about]
    assert (one.low_ns, one.high_ns) == (60_000 * MS, 90_000 * MS)
    assert one.evidence.startswith("1 attempt hung for 90.0 s until ended")
