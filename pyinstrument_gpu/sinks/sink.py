# SPDX-License-Identifier: Apache-2.0
"""The base class of sinks, which receive what is new in a recording while it is active."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyinstrument_gpu.sinks.update import RunUpdate


class Sink(ABC):
    """Receives what is new in a run at intervals: `recording.add_sink(sink)`.

    `write` and `close` are called on a thread of the recording's, never on a training thread. An
    exception there switches this sink off, with one warning; training and other sinks go on. A
    sink serves one recording.
    """

    def open(self) -> None:
        """Open the sink. Called by `add_sink`, which passes exceptions on to its caller."""
        return

    @abstractmethod
    def write(self, update: RunUpdate) -> None:
        """Process an update. The last update of a recording has `final` set."""

    def close(self) -> None:
        """Release what `open` acquired. Called once, after the last `write` or one that failed."""
        return
