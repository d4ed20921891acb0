# SPDX-License-Identifier: Apache-2.0
"""One of the two things that a gate compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pyinstrument_gpu.core.run import Run


class Side(Protocol):
    """Something that trains and can be recorded many times.

    Attributes:
        text: what it is, for people.
    """

    @property
    def text(self) -> str: ...

    def record(self, name: str, folder: Path) -> Run | Sequence[Run]:
        """Train once, and return the run, which is kept in the folder under that name; the runs of
        its ranks, by number, if there are several.

        Raises:
            GateError: it failed, or left no run.
        """
