# SPDX-License-Identifier: Apache-2.0
"""The condition of a recording, its program and its process, also after their end.

The values of `Condition` are the words of `watch` and `why`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple


class Condition(str, enum.Enum):
    """The condition of a recording and its process, or how they ended."""

    FINISHED = "finished"
    """Its program ended with exit code 0."""
    ENDED = "ended"
    """The recording was ended. How its program ended is not known."""
    FAILED = "failed"
    """By an exception, or with an exit code that is not 0."""
    CUT_OFF = "cut off"
    """Its file ends without a word, and its process is gone."""
    LOST = "lost"
    """Its file ends without a word. Whether its process lives can't be seen from here."""
    STOPPED = "stopped"
    """A signal or a debugger holds its process."""
    SILENT = "silent"
    """Its process lives, and its recorder does not write."""
    UNWRITTEN = "unwritten"
    """Its file could not be written any more; what it did next is not known."""
    HANGING = "hanging"
    """It lives, and has ended no step for far longer than steps take."""
    RUNNING = "running"

    @property
    def is_final(self) -> bool:
        """True if nothing more will come."""
        return self in (
            *(Condition.FINISHED, Condition.ENDED, Condition.FAILED),
            *(Condition.CUT_OFF, Condition.UNWRITTEN),
        )

    @property
    def has_ended(self) -> bool:
        """True if it has stopped, and not by finishing."""
        return self in (
            *(Condition.FAILED, Condition.CUT_OFF, Condition.LOST, Condition.STOPPED),
            *(Condition.SILENT, Condition.UNWRITTEN),
        )


class ProgramEnd(NamedTuple):
    """The way in which a program ended. None is unknown.

    Attributes:
        exit_code: with which exit code.
        exception: by an exception of which type.
        lost_peer: whether that says that another rank did not answer, so that it was not the first.
    """

    exit_code: int | None = None
    exception: str | None = None
    lost_peer: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> ProgramEnd:
        """Return the end of the program by a run's environment."""
        found = environment.get("program_end", {})
        exception = found.get("exception") or None
        return cls(found.get("exit_code"), exception, found.get("lost_peer", False))

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code) or self.exception is not None

    @property
    def condition(self) -> Condition:
        """The condition of the program, provided that its recording was ended."""
        if self.has_failed:
            return Condition.FAILED
        return Condition.ENDED if self.exit_code is None else Condition.FINISHED


class ProcessState(enum.Enum):
    """The state of a process, as far as that can be seen."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """By a signal, or by a debugger."""
    GONE = "gone"
    UNKNOWN = "unknown"
