# SPDX-License-Identifier: Apache-2.0
"""Where the runs of many commits say that a change is."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.blame.search import BLOCK, Places, places


def places_of(commits: list[int], times_ns: Sequence[float], runnable: Sequence[int]) -> Places:
    """Of runs in blocks of one size."""
    return places(commits, times_ns, runnable, [run // BLOCK for run in range(len(commits))])


def times(commits: list[int], place: int, noise: float, seed: int = 1) -> list[float]:
    """Commits behind the place take 5 % more, and the machine becomes slower all the time."""
    random = np.random.default_rng(seed)
    drift = np.linspace(0, 1, len(commits))
    slower = 0.05 * (np.array(commits) > place)
    return list(1e6 * np.exp(drift + slower + random.normal(0, noise, len(commits))))


@pytest.mark.parametrize("place", [0, 7, 15])
def test_the_place_is_found_while_the_machine_drifts(place: int) -> None:
    random = Random(1)
    commits = [0, 16, 16, 0] * 2
    for _ in range(25):
        found = places_of(commits, times(commits, place, 0.01), range(17))
        commits += found.next_commits(random)
    assert found.best == place
    assert found.chances[place] > 0.95
    assert 0.02 < found.effects[place] < 0.06


def test_runs_are_made_where_they_tell_most() -> None:
    commits = [0, 16, 16, 0] * 2
    random = Random(1)
    for _ in range(40):
        found = places_of(commits, times(commits, 7, 0.005), range(17))
        commits += found.next_commits(random)
    # Both sides of the place, as often; of the others none any more.
    last = commits[-10 * BLOCK :]
    assert sum(commit > 7 for commit in last) == len(last) / 2
    assert set(last) <= {*range(9), 16}


def test_a_level_that_changes_from_block_to_block_is_no_change() -> None:
    commits = [0, 16, 16, 0, 3, 9, 12, 5] * 3
    times_ns = times(commits, 7, 0.01)
    levels = np.repeat(np.arange(1.0, 1 + len(commits) / BLOCK), BLOCK)
    plain, other = (places_of(commits, t, range(17)) for t in (times_ns, times_ns * levels))
    assert other.chances == pytest.approx(plain.chances)


def test_only_runs_of_one_block_are_compared() -> None:
    # Of commits that ran at once, the second is slower; between blocks the machine changed.
    times_ns = [1.0, 1.1, 1.1, 2.2, 2.0, 2.2, 5.0]
    found = places([0, 1, 2, 2, 0, 1, 0], times_ns, range(3), [0, 0, 0, 3, 3, 5, 6])
    assert found.best == 0
    assert found.effects[0] == pytest.approx(np.log(1.1))


def test_what_was_passed_over_makes_a_place_more_likely() -> None:
    found = places_of([0, 16, 16, 0], [1.0, 1.1, 1.1, 1.0], [0, 1, 2, 6])
    assert found.chances == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert found.likely(0.5) == [2]
    assert sorted(found.likely(0.95)) == [0, 1, 2]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=30), st.integers(0, 1000))
def test_chances_add_up_to_one_whatever_was_run(more: list[int], seed: int) -> None:
    commits = [0, 8, 8, 0, *more]
    found = places_of(commits, times(commits, 3, 0.1, seed), range(9))
    assert found.chances.sum() == pytest.approx(1)
    assert all(0 <= commit <= 8 for commit in found.next_commits(Random(seed)))
