# SPDX-License-Identifier: Apache-2.0
"""What a phase costs below Python, in instructions: a figure that no other program disturbs."""

import pytest

from tests.helpers import hot_path
from tests.helpers.callgrind import MISSING, instructions, native_program

MOST_CHANGE = 0.05
LOAD_TEST_AND_BRANCH = 3

needs_valgrind = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def counts() -> dict[str, float]:
    return hot_path.count()


@needs_valgrind
def test_the_hot_path_takes_as_many_instructions_as_before(counts: dict[str, float]) -> None:
    build = hot_path.build()
    before = hot_path.written().get(build)
    if before is None:
        pytest.skip(f"no counts are written down for {build}: run `{hot_path.WRITE}`")
    assert set(before) == set(counts)
    # Where it is meant: run `python -m tests.helpers.hot_path`, and say why in the commit.
    assert hot_path.changed(before, counts, MOST_CHANGE) == {}


@needs_valgrind
@pytest.mark.thorough
def test_the_environment_changes_no_count() -> None:
    program = native_program("test_hot_path_cost")
    large = {f"PIG_TEST_{i}": "x" * 1000 for i in range(100)}
    assert instructions(program, "recording", 10) == instructions(
        program, "recording", 10, environment=large
    )


@needs_valgrind
def test_nvtx_without_a_tool_is_a_load_a_test_and_a_branch(counts: dict[str, float]) -> None:
    # Once to begin and once to end; none would mean that it was optimised away.
    assert 0 < round(counts["nvtx"]) <= 2 * LOAD_TEST_AND_BRANCH


def test_what_counts_as_changed() -> None:
    before = {"recording": 100.0, "device": 100.0, "nested": 300.0, "not_recording": 10.0}
    now = {"recording": 105.0, "device": 95.0, "nested": 316.0, "not_recording": 2.0}
    assert hot_path.changed(before, now, 0.05) == {
        "nested": "300 instructions before, 316 now",
        "not_recording": "10 instructions before, 2 now",
    }


def test_every_build_has_every_loop() -> None:
    for counts in hot_path.written().values():
        assert set(counts) == set(hot_path.LOOPS)
        assert all(each > 0 for each in counts.values())
