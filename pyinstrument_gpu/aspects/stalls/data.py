# SPDX-License-Identifier: Apache-2.0
"""A time in which no step began or ended for far longer than steps take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupProgress:
    """How far a process group had come.

    Attributes:
        group: its name.
        enqueued: number of the last operation that the program asked for; -1 if there was none.
        started, completed: of the last one that PyTorch saw begin, and end; None if it can't tell.
        operation: of the last one asked for, such as "all_reduce"; None if that is not known.
    """

    group: str
    enqueued: int
    started: int | None
    completed: int | None
    operation: str | None


@dataclass(frozen=True)
class Stall:
    """What the watchdog saw. Times are ns since the run began.

    Attributes:
        since_ns: when the last step began or ended, or the last collective was asked for.
        noticed_ns: when the watchdog noticed.
        ended_ns: when a step began or ended again; None if none has.
        limit_ns: how long nothing had to happen for that.
        step: index of the step that was open; -1 none.
        paths: by thread, as an index into `Run.threads`, the path of its innermost open phase.
        stacks: by the name of a thread its Python stack as text, innermost call first; empty if it
            could not be read.
        device_event_ns: when the device had last completed an event that was timed; None unknown.
        groups: how far the process groups had come.
    """

    since_ns: int
    noticed_ns: int
    ended_ns: int | None
    limit_ns: int
    step: int
    paths: tuple[tuple[int, str], ...] = ()
    stacks: tuple[tuple[str, str], ...] = ()
    device_event_ns: int | None = None
    groups: tuple[GroupProgress, ...] = ()
