# SPDX-License-Identifier: Apache-2.0
"""What is known of a program, read from an environment that may hold anything."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.model.program_facts import KEY, ProgramFacts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
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


@pytest.mark.parametrize("environment", [{}, {KEY: None}, {KEY: []}, {KEY: {}}])
def test_what_was_not_written_is_unknown(environment: dict[str, Any]) -> None:
    assert ProgramFacts.of(environment) == ProgramFacts()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loader_workers", -1),
        ("loader_workers", True),
        ("loader_workers", 1.0),
        ("loader_pins", 1),
        ("loader_prefetch", -2),
        ("loader_persistent", "no"),
        ("other_streams", 0),
        ("ranks", 0),
        ("ranks", "2"),
    ],
)
def test_a_value_of_another_kind_is_unknown(name: str, value: object) -> None:
    found = ProgramFacts.of({KEY: {**KNOWN._asdict(), name: value}})
    assert found._asdict() == {**KNOWN._asdict(), name: None}


@given(st.fixed_dictionaries({}, optional={name: JSON for name in KNOWN._asdict()}) | JSON)
def test_nothing_raises(written: Any) -> None:
    for name, value in ProgramFacts.of({KEY: written})._asdict().items():
        assert value is None or value == written[name]
