# SPDX-License-Identifier: Apache-2.0
"""A run, or one of its steps, as text for the terminal."""

from __future__ import annotations

from rich.console import Console

from pyinstrument_gpu.document.document import document_of
from pyinstrument_gpu.document.one_step import step_document
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
    if step is not None:
        return printed(one_step(step_document(run, step), width), width, color=color)
    return printed(overview(document_of(run), width), width, color=color)
