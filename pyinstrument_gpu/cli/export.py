# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu export`: write runs in another format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pyinstrument_gpu import export as exports
from pyinstrument_gpu.cli.run_paths import found_runs, say_what_is_left_out
from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.atomic_file import check_replaceable
from pyinstrument_gpu.export.rank_alignment import NoStartTimeError
from pyinstrument_gpu.export.run_facts import losses
from pyinstrument_gpu.parts.words import printable

_LONG_SPANS = 500_000  # fewer take less than a second


@click.command(options_metavar="-o OUT [OPTIONS]")
@click.argument("given", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="OUT", help="Write to this file or folder, or to standard output (-)."
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(exports.FORMATS)),
    help="Use this format, whatever the suffix of OUT.",
)
@click.option(
    "--summary", is_flag=True, help="CSV and Parquet: write one row per phase, not one per span."
)
@click.option(
    "--steps",
    is_flag=True,
    help="CSV and Parquet: write one row per step, with a column for each phase.",
)
@click.option(
    "--metrics", is_flag=True, help="CSV and Parquet: write one row per value of a metric."
)
@click.option("--syncs", is_flag=True, help="CSV and Parquet: write one row per wait for a device.")
@click.option(
    "--modules", is_flag=True, help="CSV and Parquet: write one row per pass through a module."
)
@click.option(
    "--neutralize-formulas",
    is_flag=True,
    help="CSV: put an apostrophe before texts that a spreadsheet would take for formulas.",
)
@click.option(
    "--merge-into",
    metavar="REPORT",
    help="nsys: merge into an existing Nsight Systems report (OUT is a new one).",
)
def export(
    given: tuple[str, ...],
    output: str | None,
    format_name: str | None,
    merge_into: str | None,
    **flags: bool,
) -> None:
    """Write runs in another format, for other tools to read.

    Several RUNs, the ranks of one job, go into one output. A RUN may also be a folder, which stands
    for the run files in it. The suffix of OUT chooses the format:

    \b
      .csv         a table of all spans
      .csv.gz      the same, compressed
      .parquet     the same as Parquet
      OUT/         a folder with a Parquet file for each rank
      .json        a trace for ui.perfetto.dev
      .json.gz     the same, compressed
      .nsys-rep    a report for Nsight Systems
      .nvtxt       text that Nsight Systems can import
      .sqlite      a database for `nsys stats`

    A run that lacks spans, or was cut short, is named on standard error.

    --format tensorboard writes an event file into the log directory OUT. Standard output (-o -)
    is CSV unless --format names another text format.
    """
    if output is None:
        *runs_before, last = given
        # `export RUN... OUT`, unless OUT was forgotten and this is one of the runs.
        if not runs_before or Path(last).suffix == ".gpurun" or is_run_file(last):
            raise click.UsageError("no output: say -o OUT, for example -o trace.json")
        given, output = tuple(runs_before), last
    to_stdout = output == "-"
    try:
        name = exports.format_for(output, format_name or ("csv" if to_stdout else None))
        if not to_stdout:
            check_replaceable(output, merge_into)
    except ExportError as error:
        raise click.UsageError(str(error)) from error
    exporter = exports.FORMATS[name]
    if to_stdout and exporter.output != "text":
        raise click.UsageError(f"{name} is not a text format: write it to a file with -o OUT")
    options: dict[str, Any] = {flag: True for flag, is_given in flags.items() if is_given}
    if merge_into is not None:
        options["merge_into"] = merge_into
    for option in options:
        if option not in exporter.options:
            formats = [other for other, each in exports.FORMATS.items() if option in each.options]
            raise click.UsageError(
                f"{name} has no option --{option.replace('_', '-')}; it is for {', '.join(formats)}"
            )
    paths, earlier = found_runs(given)
    say_what_is_left_out(earlier)
    runs = [Run.load(path) for path in paths]
    names = [click.format_filename(path) for path in paths]
    exports.check_runs(runs, names)
    try:
        with _progress_bar(sum(len(run.spans) for run in runs)) as advance:
            if to_stdout:
                exporter.write(runs, sys.stdout.buffer, advance=advance, **options)
            else:
                exports.export(runs, output, name, advance=advance, **options)
    except NoStartTimeError as error:
        raise NoStartTimeError(error.position, names[error.position]) from None
    for file, run in zip(names, runs, strict=True):
        lacking = losses(run, is_summary=flags["summary"])
        if lacking is not None:
            text = f"Warning: {file}: {lacking}. Sums of what was exported may be too low"
            click.echo(printable(text), err=True)


@contextmanager
def _progress_bar(spans: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal and there are many spans.

    Yields the function to call with the number of spans that have been written since the last call.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    is_shown = console.is_terminal and spans >= _LONG_SPANS
    with Progress(console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("Exporting", total=spans)
        yield lambda done: progress.advance(task, done)
