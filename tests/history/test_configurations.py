# SPDX-License-Identifier: Apache-2.0
"""Which configurations the runs of a program have in turn."""

from __future__ import annotations

import numpy as np
import pytest

from pyinstrument_gpu.history.configurations import configurations


@pytest.mark.parametrize(
    ("commands", "names"),
    [
        (["t.py --lr 1 --b 8", "t.py --b=16 --lr=1"], ("--b 8", "--b 16")),
        (["t.py lr=1 model=a", "t.py lr=1 model=b"], ("model=a", "model=b")),
        (["t.py small.yaml", "t.py large.yaml"], ("small.yaml", "large.yaml")),
        (["t.py --amp", "t.py"], ("--amp", "without --amp")),
        (["t.py --shift -1", "t.py --shift -2"], ("--shift -1", "--shift -2")),
        (["t.py --a 1 --b 1", "t.py --a 2 --b 2"], ("--a 1", "--a 2")),
        (["t.py", "t.py"], ()),
        ([None, "t.py 'unbalanced"], ()),
    ],
)
def test_two_in_turn(commands: list[str | None], names: tuple[str, ...]) -> None:
    numbers, texts = configurations(commands * 8, {})
    assert texts == names
    assert numbers.tolist() == [0, 1 if names else 0] * 8


def test_what_changes_once_or_in_each_run_is_none() -> None:
    commands = [f"t.py --seed {i} --lr {0.1 if i < 10 else 1}" for i in range(20)]
    numbers, texts = configurations(commands, {})
    assert (texts, numbers.tolist()) == ((), [0] * 20)


def test_a_few_runs_of_another_value_are_apart() -> None:
    commands = [f"t.py --b {i if i in (3, 7) else 100 + i % 2}" for i in range(20)]
    numbers, texts = configurations(commands, {})
    assert texts == ("--b 100", "--b 101", "other")
    assert (numbers == 2).nonzero()[0].tolist() == [3, 7]


def test_so_many_that_none_recurs_are_not_told_apart() -> None:
    commands = [f"t.py --a {i % 4} --b {i // 4 % 4}" for i in range(32)]
    numbers, texts = configurations(commands, {})
    assert texts == ("--a 0", "--a 1", "--a 2", "--a 3")
    assert numbers.tolist() == [0, 1, 2, 3] * 8


def test_the_size_of_a_step_that_no_option_tells() -> None:
    sizes = {"samples per step": np.array([8.0, 16.0] * 8)}
    assert configurations(["t.py"] * 16, sizes)[1] == ("8 samples per step", "16 samples per step")
    both = ["t.py --b 8", "t.py --b 16"] * 8
    assert configurations(both, sizes)[1] == ("--b 8", "--b 16")
