# SPDX-License-Identifier: Apache-2.0
"""A page that is a part of a notebook's output, which needs neither a server nor a file."""

from __future__ import annotations

from pyinstrument_gpu.errors import ExportError

MAX_BYTES = 2_000_000
"""Of the page. Jupyter holds back outputs of more than 3 MB at once."""


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
