# SPDX-License-Identifier: Apache-2.0
"""What NVTX costs while no tool is attached, in instructions."""

import pytest

from tests.helpers.callgrind import MISSING, instructions_per_round, native_program

_LOAD_TEST_AND_BRANCH = 3
_ROUNDS = 900


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_use_without_a_tool_is_a_load_a_test_and_a_branch() -> None:
    program = native_program("test_hot_path_cost")
    loop = instructions_per_round(program, "empty", _ROUNDS)
    push_pop = instructions_per_round(program, "nvtx", _ROUNDS)
    assert loop < push_pop  # it was not optimised away
    assert push_pop - loop <= 2 * _LOAD_TEST_AND_BRANCH  # once to begin and once to end
