# SPDX-License-Identifier: Apache-2.0
"""A run in a notebook: as the output of a cell, and as the page in a frame.

An output is a part of the notebook and has nothing else, neither a server nor a file. The output of
a cell has no script, and takes the colours of text and background from where it stands.
"""

from __future__ import annotations

import html

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError, MissingDependencyError
from pyinstrument_gpu.export.labels import colors_of
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.page.rendering import asset, template
from pyinstrument_gpu.page.step_bar import step_bars
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.summary import summary_of

MAX_BYTES = 2_000_000
"""Of the page. Jupyter holds back outputs of more than 3 MB at once."""
_PHASES = 8


class NotebookPage:
    """The page of a run, which a notebook shows in a frame.

    Attributes:
        html: the page, which can also be written to a file.
        height: of the frame, in pixels.

    Raises:
        ExportError: the page is larger than `MAX_BYTES`.
    """

    def __init__(self, html: str, height: int) -> None:
        self.html = html
        self.height = height
        size = len(self.html.encode("utf-8", "replace"))
        self._size = f"{size / 1e6:.1f} MB"
        if size > MAX_BYTES:
            raise ExportError(
                f"the page takes {self._size}, and a notebook shows {MAX_BYTES / 1e6:.0f} MB at "
                "most: write it to a file with pyinstrument-gpu report --html"
            )

    def _repr_html_(self) -> str:
        # In single quotes, as the page's data is full of the others.
        text = self.html.replace("&", "&amp;").replace("'", "&#39;")
        return (
            f"<iframe sandbox='allow-scripts' title='The page of a run' srcdoc='{text}' "
            f"style='width:100%;height:{self.height}px;border:0'></iframe>"
            f"<small>This page takes {self._size} of the notebook.</small>"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._size}>"


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
    colors = colors_of(run)
    text: str = sheet.render(
        style=asset("cell.css") + asset("bars.css"),
        name=name,
        summary=summary_of(document, phases=_PHASES),
        colors=colors,
        bar=step_bars(document, colors).get("host", ()),
    )
    return text


def notebook_page(run: Run, file: str | None, height: int) -> NotebookPage:
    """The page of a run for a notebook; arguments and errors are those of `Run.page`."""
    return NotebookPage(html_page([run], [file or ""]), height)
