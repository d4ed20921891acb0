# SPDX-License-Identifier: Apache-2.0
"""Draws the report of a run file as an SVG image, for the README.

Usage: python docs/make_report_image.py digits.gpurun docs/images/report.svg
"""

import argparse
from io import StringIO
from pathlib import Path

from rich.console import Console

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.console import rich_parts
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.overview import overview


def report_svg(run: Run, title: str, width: int = 100) -> str:
    """The report as an SVG document of `width` columns."""
    console = Console(
        file=StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor"
    )
    for part in rich_parts(overview(document_of(run)), width):
        console.print(part)
    return console.export_svg(title=title)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    svg = report_svg(Run.load(arguments.file), f"pyinstrument-gpu report {arguments.file.name}")
    arguments.output.write_text(svg, encoding="utf-8")
