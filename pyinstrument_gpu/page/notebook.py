# SPDX-License-Identifier: Apache-2.0
"""A run in a notebook: as the output of a cell, and as the page in a frame.

An output is a part of the notebook and has nothing else, neither a server nor a file. The output of
a cell has no script, and takes the colours of text and background from where it stands.
"""

from __future__ import annotations

import html

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import MissingDependencyError
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.page.rendering import asset, template
from pyinstrument_gpu.page.step_bar import step_bars
from pyinstrument_gpu.parts.notebook_page import NotebookPage
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.summary import summary_of

_PHASES = 8


def run_html(run: Run, name: str = "run") -> str:
    """The short report as the output of a cell. Without jinja2 it is the terminal's.

    Args:
        name: of the variable that has the run.
    """
    try:
        sheet = template("cell.html.jinja")
    except MissingDependencyError:
        return f"<pre>{html.escape(run.report(color=False, width=100))}</pre>"
    document = document_of(run)
    text: str = sheet.render(
        style=asset("cell.css") + asset("bars.css"),
        name=name,
        summary=summary_of(document, phases=_PHASES),
        bar=step_bars(document).get("host", ()),
    )
    return text


def notebook_page(run: Run, file: str | None, height: int) -> NotebookPage:
    """The page of a run for a notebook; arguments and errors are those of `Run.page`."""
    return NotebookPage(html_page([run], [file or ""]), height)
