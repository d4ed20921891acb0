# SPDX-License-Identifier: Apache-2.0
"""How alike the results of two trials are."""

from __future__ import annotations

import pytest

from pyinstrument_gpu.trial.results import Results, Same, alike

BASE = Results("aa", first=(0.0, 0.0), third=(3.0, 4.0), losses=(2.0, 1.0))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (BASE, Same.IDENTICAL),
        (Results("aa", (0.0, 0.0), (3.0, 4.0), (2.0, 1.0 + 1e-7)), Same.LAST_DIGITS),
        (Results("bb", (0.0, 0.0), (3.0, 4.4), (2.0, 1.0)), Same.LAST_DIGITS),
        (Results("bb", (0.0, 0.0), (3.0, 4.6), (2.0, 1.0)), Same.DIFFERENT),
        (Results("bb", (0.0, 0.0), (3.0, 4.0), (2.0, 1.0)), Same.LAST_DIGITS),
        (Results("bb", (0.0,), (3.0,), (2.0, 1.0)), Same.DIFFERENT),
    ],
)
def test_parameters_decide_relative_to_what_training_has_changed(
    other: Results, same: Same
) -> None:
    assert alike(BASE, other) is same


@pytest.mark.parametrize(
    ("losses", "same"),
    [
        ((2.0, 1.0), Same.IDENTICAL),
        ((2.0, 1.01), Same.LAST_DIGITS),
        ((2.0, 1.5), Same.DIFFERENT),
        ((2.0,), Same.DIFFERENT),
    ],
)
def test_losses_stand_for_parameters_without_an_optimizer(
    losses: tuple[float, ...], same: Same
) -> None:
    assert alike(Results(losses=(2.0, 1.0)), Results(losses=losses)) is same


def test_nothing_is_known_of_a_program_without_either() -> None:
    assert alike(Results(), Results()) is Same.UNKNOWN
