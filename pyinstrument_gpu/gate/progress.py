# SPDX-License-Identifier: Apache-2.0
"""Says which run of a gate is under way, and how long it may still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """On a terminal one line that changes, elsewhere (a log of CI) a line for each run.

    Args:
        in_one_line: whether nothing else writes to a terminal meanwhile.
        clock: seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        in_one_line: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._is_one_line = in_one_line and stream.isatty()
        self._clock = clock
        self._begin_s = clock()
        self._done = 0
        self._width = 0

    def begin(self, side: str, runs: int, max_runs: int) -> None:
        """A run begins, one of so many until it is known or the sides are looked at again, and of
        so many at most."""
        elapsed_s = self._clock() - self._begin_s
        text = f"gate: run {self._done + 1} of {runs} ({side}), {_minutes(elapsed_s)}"
        if self._done:
            text += f", about {_minutes(elapsed_s / self._done * (runs - self._done))} left"
        if max_runs > runs:
            text += f"; up to {max_runs} runs if it stays unclear"
        self._write(text)

    def end(self) -> None:
        self._done += 1

    def close(self) -> None:
        """What is written next begins on a line of its own."""
        if self._is_one_line and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _write(self, text: str) -> None:
        if self._is_one_line:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
