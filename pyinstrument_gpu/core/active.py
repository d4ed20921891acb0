# SPDX-License-Identifier: Apache-2.0
"""The recording of this process, as those see it that watch the program for it."""

from __future__ import annotations

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
