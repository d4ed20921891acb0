# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of `gate` makes of its gates."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks import gate_errors
from benchmarks.gate_errors import Row, figures, measure
from benchmarks.gpu.figure import Figure
from pyinstrument_gpu.gate.gate import Plan


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


@pytest.mark.thorough
def test_gates_are_made_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = torch.zeros(64, 64), torch.arange(64) % 10
    monkeypatch.setattr(gate_errors, "digits", lambda: pictures)
    log = tmp_path / "log"

    def measured() -> list[Figure]:
        return [*measure(2, minutes=math.inf, steps=6, planted=[0.5], plan=Plan(3, 3), log=log)]

    made = measured()
    lines = log.read_text().splitlines()
    assert len(lines) == 2  # a slower one is third
    again = measured()
    assert log.read_text().splitlines() == lines
    assert made[1:] == again[1:]  # all but the time of a step
    assert made[1].note.endswith(" of 2")
