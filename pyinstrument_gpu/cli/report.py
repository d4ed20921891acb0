# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu report`: print runs as tables, or write them as a page."""

from __future__ import annotations

from pathlib import Path

import click

from pyinstrument_gpu.document.document import document_of
from pyinstrument_gpu.document.json_text import MOST_ROWS, json_text
from pyinstrument_gpu.document.one_step import step_document
from pyinstrument_gpu.run import Run


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True)
@click.option("--step", type=int, metavar="N", help="Show only the step with index N.")
@click.option(
    "--width",
    type=click.IntRange(min=20),
    metavar="COLUMNS",
    help="Format for this many columns.  [default: the width of the terminal]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per RUN, not tables.")
@click.option(
    "--all-rows",
    is_flag=True,
    help=f"With --json: keep lists whole.  [default: their first {MOST_ROWS} rows]",
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Write one HTML file with all RUNs, which opens without a network.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where --html writes.  [default: the first RUN with the suffix .html]",
)
def report(
    paths: tuple[str, ...],
    step: int | None,
    width: int | None,
    as_json: bool,
    all_rows: bool,
    as_html: bool,
    output: str | None,
) -> None:
    """Show where the time of each step went."""
    if all_rows and not as_json:
        raise click.UsageError("--all-rows is for --json; tables say what they leave out")
    if output is not None and not as_html:
        raise click.UsageError("--output is for --html")
    if as_html and (as_json or step is not None or width is not None):
        raise click.UsageError("--html can't be combined with --json, --step or --width")
    file_of_run: dict[str, str] = {}
    runs: list[Run] = []
    for i, path in enumerate(paths):
        shown = click.format_filename(path)
        run = Run.load(path)
        run_id = run.environment.get("run_id", f"unknown {i}")
        if run_id in file_of_run:
            raise click.ClickException(
                f"{file_of_run[run_id]} and {shown} are the same run: give it once"
            )
        file_of_run[run_id] = shown
        runs.append(run)
        if as_html:
            continue
        try:
            if as_json:
                document = (
                    document_of(run, shown) if step is None else step_document(run, step, shown)
                )
                text = json_text(document, None if all_rows else MOST_ROWS)
            else:
                text = run.report(step=step, width=width)
        except KeyError as error:
            raise click.ClickException(f"{shown}: {error.args[0]}") from error
        if len(paths) > 1 and not as_json:
            print(f"=== {shown}" if i == 0 else f"\n=== {shown}")
        print(text)
    if as_html:
        # Not above: the tables need none of it.
        from pyinstrument_gpu.page.page import html_page, page_beside, write_page

        page = page_beside(Path(paths[0])) if output is None else Path(output)
        write_page(html_page(runs, list(file_of_run.values())), page)
        print(f"Page: {click.format_filename(page)}")
