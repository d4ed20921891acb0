# SPDX-License-Identifier: Apache-2.0
"""A side of a gate whose runs are made up."""

from collections.abc import Callable
from pathlib import Path

from pyinstrument_gpu.core.run import Run


class ScriptedSide:
    """Gives the runs that a function makes of their names."""

    def __init__(self, make: Callable[[str], Run], text: str = "made up") -> None:
        self._make = make
        self.text = text

    def record(self, name: str, folder: Path) -> Run:
        return self._make(name)
