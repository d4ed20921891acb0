# SPDX-License-Identifier: Apache-2.0
"""What `rich` prints, as text."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text


def printed(parts: Iterable[Text | Table], width: int, *, color: bool = False) -> str:
    """The parts below each other, without spaces at the ends of lines. Texts wrap at `width`
    columns, and tables do not."""
    parts = [*parts]
    console = Console(
        file=StringIO(),
        width=max([width, *(part.width or 0 for part in parts if isinstance(part, Table))]),
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        no_color=not color,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
