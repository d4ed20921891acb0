# SPDX-License-Identifier: Apache-2.0
"""How a recording is, or how it ended, in a word: the words of `watch` and `why`."""

from __future__ import annotations

import enum


class Condition(str, enum.Enum):
    """How a recording and its process are, or how they ended."""

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
        """Whether nothing more will come."""
        return self in (
            *(Condition.FINISHED, Condition.ENDED, Condition.FAILED),
            *(Condition.CUT_OFF, Condition.UNWRITTEN),
        )

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped, and not by finishing."""
        return self in (
            *(Condition.FAILED, Condition.CUT_OFF, Condition.LOST, Condition.STOPPED),
            *(Condition.SILENT, Condition.UNWRITTEN),
        )
