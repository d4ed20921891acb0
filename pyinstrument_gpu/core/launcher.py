# SPDX-License-Identifier: Apache-2.0
"""What a launcher such as torchrun says of the place of this process in its job."""

from __future__ import annotations

import os

_told: dict[str, int] = {}


def tell_of_launcher(**numbers: int) -> None:
    """Say what a framework knows that launches ranks itself and tells the environment only part of
    it: RANK, WORLD_SIZE and LOCAL_RANK. Nothing where there is one rank."""
    if numbers.get("WORLD_SIZE", 1) > 1:
        _told.update(numbers)


def launcher_number(variable: str) -> int | None:
    """A number that a launcher such as torchrun has put into the environment, or that a framework
    has told; else None."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else _told.get(variable)
