# SPDX-License-Identifier: Apache-2.0
"""What is known of a program, from a run's environment."""

from typing import Any

import pytest

from pyinstrument_gpu.core.program_facts import KEY, ProgramFacts

KNOWN = ProgramFacts(
    loader_workers=2,
    loader_pins=True,
    loader_prefetch=4,
    loader_persistent=False,
    other_streams=True,
    ranks=8,
)


def test_what_was_written_is_read() -> None:
    assert ProgramFacts.of({KEY: KNOWN._asdict()}) == KNOWN
    assert ProgramFacts.of({KEY: {**KNOWN._asdict(), "of a later version": 1}}) == KNOWN


@pytest.mark.parametrize("environment", [{}, {KEY: {}}])
def test_what_was_not_written_is_unknown(environment: dict[str, Any]) -> None:
    assert ProgramFacts.of(environment) == ProgramFacts()
