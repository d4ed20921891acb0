# SPDX-License-Identifier: Apache-2.0
"""A progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONG_SPANS = 500_000  # fewer take less than a second


@contextmanager
def progress_bar(spans: int) -> Iterator[Callable[[int], None]]:
    """Shows how many spans of so many are done, on standard error, where that is a terminal and
    they are many; gives the function to call with the number of those newly done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    is_shown = console.is_terminal and spans >= _LONG_SPANS
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("", total=spans)
        yield lambda done: progress.advance(task, done)
