# SPDX-License-Identifier: Apache-2.0
"""What a recording asks of a place that is told of it while it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyinstrument_gpu.sinks.update import RunUpdate


class Sink(ABC):
    """Takes what is new in a run, again and again: `recording.add_sink(sink)`.

    `write` and `close` are called on a thread of the recording's, never on a training thread. An
    exception there switches this sink off, with one warning; training and other sinks go on. A
    sink serves one recording.
    """

    def open(self) -> None:
        """Get ready. Called by `add_sink`, which passes exceptions on to its caller."""
        return

    @abstractmethod
    def write(self, update: RunUpdate) -> None:
        """Take what is new. The last update of a recording has `final` set."""

    def close(self) -> None:
        """Let go of what `open` took. Called once, after the last `write` or one that failed."""
        return
