# SPDX-License-Identifier: Apache-2.0
"""This process: the recording that is active in it, and its place in a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pyinstrument_gpu.native import native


class ActiveRecording(Protocol):
    """What a watcher may ask of the recording that it serves.

    Attributes:
        facts: what joins the environment of the run at the end.
        before_end: called as the recording ends, in order. They may be called twice, or at once on
            two threads, and must not raise.
        watchers: what serves this recording alone, by a name of its own.
    """

    facts: dict[str, Any]
    before_end: list[Callable[[], None]]
    watchers: dict[str, Any]

    @property
    def path(self) -> Path | None:
        """The run file; None for a recording in memory."""


_when_begun: list[Callable[[Any], None]] = []


def active() -> ActiveRecording | None:
    """The recording of this process that has not ended."""
    owner: ActiveRecording | None = native.owner()
    return owner


def when_begun(function: Callable[[ActiveRecording], None]) -> None:
    """Have a function called whenever a recording has begun. It must not raise."""
    _when_begun.append(function)


def tell_begun(recording: ActiveRecording) -> None:
    """Call what `when_begun` was given."""
    for function in _when_begun:
        function(recording)


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
