# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of `gate` makes of its gates."""

import pytest

from benchmarks.gate_errors import Row, figures


def row(slower: float, result: str, smallest_effect: float = 0.1) -> Row:
    return Row(slower, result, slower, (0.0, 0.1), smallest_effect, 10, None)


def test_shares_of_gates() -> None:
    rows = [
        *[row(0.0, "UNCLEAR")] * 39,
        row(0.0, "SLOWER"),
        *[row(0.05, "SLOWER", 0.04)] * 3,
        row(0.05, "UNCLEAR", 0.05),
        row(0.05, "NOT SLOWER", 0.06),
    ]
    found = {figure.name: figure for figure in figures(rows)}
    false = found["the same program: SLOWER"]
    assert (false.value, false.note, false.goal) == (2.5, "1 of 40", 3.0)
    assert false.low == pytest.approx(0.443, abs=0.001)  # Wilson's
    assert false.high == pytest.approx(12.88, abs=0.01)
    able = found["steps longer by 5 %, which the gate says that it can show: SLOWER"]
    assert (able.value, able.note) == (75, "3 of 4")
    assert found["steps longer by 5 %: NOT SLOWER"].note == "1 of 5"
    assert found["steps longer by 5 %: smallest effect, median"].value == 4
    assert "processors that other programs used" not in found
