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


@dataclass(frozen=True)
class SourceLine:
    """A line of source code.

    Attributes:
        file: path of the file.
        line: its number.
        function: name of the function around it.
    """

    file: str
    line: int
    function: str

    def seen_from(self, folders: Sequence[str]) -> str:
        """The line as `file:line`. Installed code has its library's name, as in
        `transformers/trainer.py:2345`. Other files are named from the first of these folders that
        they lie in, or in full."""
        installed = _INSTALLED.fullmatch(self.file)
        name = installed[1] if installed else self.file
        for folder in () if installed else folders:
            inside = folder.rstrip(os.sep) + os.sep
            if inside != os.sep and self.file.startswith(inside):
                name = self.file[len(inside) :]
                break
        return f"{name}:{self.line}"
