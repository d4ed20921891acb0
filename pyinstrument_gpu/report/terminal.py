# SPDX-License-Identifier: Apache-2.0
"""A run, or one of its steps, as text for the terminal."""

from __future__ import annotations

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.one_step import one_step, step_document
from pyinstrument_gpu.report.overview import overview


def report(
    run: Run, *, step: int | None = None, width: int | None = None, color: bool | None = None
) -> str:
    """The report of a run, or of one of its steps.

    Args:
        run: the run.
        step: index of the one step to show; None shows the whole run.
        width, color: as in `for_terminal`.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    if step is not None:
        of_step = step_document(run, step)
        return for_terminal(one_step(of_step), width, color)
    document = document_of(run)
    return for_terminal(overview(document), width, color)
