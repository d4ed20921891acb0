# SPDX-License-Identifier: Apache-2.0
"""A run, or one of its steps, as text for the terminal."""

from __future__ import annotations

from rich.console import Console

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.one_step import one_step
from pyinstrument_gpu.report.overview import overview


def report(
    run: RunData, *, step: int | None = None, width: int | None = None, color: bool | None = None
) -> str:
    """The report of a run, or of one of its steps.

    Args:
        run: the run.
        step: index of the one step to show; None shows the whole run.
        width: columns; None takes the terminal's, or 80.
        color: whether to use colours; None does where standard output is a terminal and
            `NO_COLOR` is not set.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    stdout = Console()
    width = stdout.width if width is None else width
    color = (stdout.is_terminal and not stdout.no_color) if color is None else color
    parts = overview(run, width) if step is None else one_step(run, step, width)
    return printed(parts, width, color=color)
