# SPDX-License-Identifier: Apache-2.0
"""What `rich` prints, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.report.table import printable


def notes(lines: Iterable[str]) -> Iterator[Text]:
    """What the reader has to know, each on lines of its own, behind an empty one."""
    shown = [Text(f"! {printable(line)}", "yellow") for line in lines]
    yield from [Text(), *shown] if shown else []


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


def for_terminal(
    parts: Callable[[int], Iterable[Text | Table]], width: int | None, color: bool | None
) -> str:
    """What `parts` makes for so many columns, as text.

    Args:
        width: columns; None takes the terminal's, or 80.
        color: whether to use colours; None does where standard output is a terminal and
            `NO_COLOR` is not set.
    """
    stdout = Console()
    width = stdout.width if width is None else width
    color = (stdout.is_terminal and not stdout.no_color) if color is None else color
    return printed(parts(width), width, color=color)
