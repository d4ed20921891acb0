# SPDX-License-Identifier: Apache-2.0
"""A line of source code, and what to call its file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_INSTALLED = re.compile(
    r".*[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+t?)[/\\](.+)", re.DOTALL
)

_CELL = re.compile(r"Cell In\[\d+\]")


@dataclass(frozen=True)
class SourceLine:
    """A line of source code.

    Attributes:
        file: path of the file, or "Cell In[2]" for a cell of a notebook.
        line: its number.
        function: name of the function around it.
    """

    file: str
    line: int
    function: str

    def seen_from(self, folders: Sequence[str]) -> str:
        """The line as `file:line`, or as "Cell In[2], line 3". Installed code has its library's
        name, as in `transformers/trainer.py:2345`. Other files are named from the first of these
        folders that they lie in, or in full."""
        if _CELL.fullmatch(self.file):
            return f"{self.file}, line {self.line}"
        installed = _INSTALLED.fullmatch(self.file)
        name = installed[1] if installed else self.file
        for folder in () if installed else folders:
            inside = folder.rstrip(os.sep) + os.sep
            if inside != os.sep and self.file.startswith(inside):
                name = self.file[len(inside) :]
                break
        return f"{name}:{self.line}"
