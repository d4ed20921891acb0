# SPDX-License-Identifier: Apache-2.0
"""The place of this process in its job, as told by a launcher such as torchrun."""

from __future__ import annotations

import os

_noted: dict[str, int] = {}


def note_launcher(**numbers: int) -> None:
    """Note what a framework knows that launches ranks itself and puts only part of it into the
    environment: RANK, WORLD_SIZE and LOCAL_RANK. Does nothing where there is only one rank."""
    if numbers.get("WORLD_SIZE", 1) > 1:
        _noted.update(numbers)


def launcher_number(variable: str) -> int | None:
    """A number that a launcher such as torchrun has put into the environment, or that a framework
    has noted; else None."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else _noted.get(variable)
