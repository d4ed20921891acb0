# SPDX-License-Identifier: Apache-2.0
"""What NVTX costs while no tool is attached, in instructions."""

import pytest

from tests.helpers.callgrind import MISSING, instructions, native_program

_LOAD_TEST_AND_BRANCH = 3
_COUNT = 100_000


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_use_without_a_tool_is_a_load_a_test_and_a_branch() -> None:
    program = native_program("test_nvtx_cost")

    def per_round(loop: str) -> float:
        few, many = (instructions(program, loop, count) for count in (0, _COUNT))
        return (many - few) / _COUNT

    loop, push_pop = per_round("empty"), per_round("push_pop")
    assert loop < push_pop  # it was not optimised away
    # Once to begin and once to end. Dividing, a round may be off by what the loop does once.
    assert push_pop - loop <= 2 * _LOAD_TEST_AND_BRANCH + 0.01
