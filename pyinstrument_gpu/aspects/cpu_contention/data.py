# SPDX-License-Identifier: Apache-2.0
"""The use of processors while a run was recorded: one declaration for file and `Run`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.core.file.json_document import Count

DOCUMENT = "processor"
"""The name of its document in the run file."""
WAIT_KIND, THROTTLED_KIND = 2, 3
"""In the log of causes: of long steps, for how long they waited, and were throttled."""
LEAST_NS = 1_000_000_000
"""Of what is counted in hundredths of a second, less says nothing."""


class CpuContention(Struct, frozen=True):
    """The kernel's counts from the beginning of a recording to its end. None is unknown.

    Attributes:
        elapsed_ns: the time from one to the other.
        processors: those that the process may use.
        busy_ns: what all programs used of these together.
        own_ns: what the process used, with the processes that it started.
        started_ns: what these used.
        throttled_ns: for how long the CPU limit of a control group (a container) has stopped it;
            the sum over processors.
        pressure_ns: for how long any program of the machine waited for a processor.
        thread: the name of the thread that waited longest for a processor, of those that were
            there at the end. What others than their own have waited, steps don't show, and where
            they are short, few are read.
        thread_wait_ns: for how long that was.
    """

    elapsed_ns: Count
    processors: Annotated[int, Meta(ge=1)]
    busy_ns: Count | None = None
    own_ns: Count | None = None
    throttled_ns: Count | None = None
    pressure_ns: Count | None = None
    thread: Annotated[str, Meta(max_length=300)] | None = None
    thread_wait_ns: Count | None = None
    started_ns: Count | None = None

    @property
    def others(self) -> float | None:
        """The number of its processors that other processes used, on average."""
        if self.busy_ns is None or self.own_ns is None or self.elapsed_ns < LEAST_NS:
            return None
        return max(0.0, self.busy_ns - self.own_ns) / self.elapsed_ns

    def share(self, time_ns: int | None) -> float | None:
        """Return a time as a share of the elapsed time."""
        return None if time_ns is None or self.elapsed_ns < LEAST_NS else time_ns / self.elapsed_ns
