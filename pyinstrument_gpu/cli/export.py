# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu export`: write runs in another format."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from pyinstrument_gpu import export as exports
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.atomic_file import check_replaceable
from pyinstrument_gpu.run import Run

_LONG_SPANS = 500_000  # fewer take less than a second


@click.command()
@click.argument("files", metavar="RUN...", nargs=-1, required=True)
@click.argument("output", metavar="OUT")
@click.option("--format", "format_name", metavar="NAME", help="The format; by suffix by default.")
@click.option(
    "--summary", is_flag=True, help="CSV, Parquet: one row per phase instead of one per span."
)
@click.option("--metrics", is_flag=True, help="CSV: one row per value of a metric.")
@click.option("--syncs", is_flag=True, help="CSV: one row per wait for a device.")
@click.option(
    "--merge-into", metavar="REPORT", help="Nsight: lay it over a report of nsys profile."
)
def export(
    files: tuple[str, ...],
    output: str,
    format_name: str | None,
    summary: bool,
    metrics: bool,
    syncs: bool,
    merge_into: str | None,
) -> None:
    """Write a run, or the ranks of one job, to OUT in another format.

    A folder (OUT/) takes Parquet files, one per rank; with --format tensorboard OUT is a log
    directory. "-" is standard output, for formats that are
    text; as CSV by default.
    """
    to_stdout = output == "-"
    try:
        name = exports.format_for(output, format_name or ("csv" if to_stdout else None))
        if not to_stdout:
            check_replaceable(output, merge_into)
    except ExportError as error:
        raise click.UsageError(str(error)) from error
    exporter = exports.FORMATS[name]
    if to_stdout and exporter.output != "text":
        raise click.UsageError(f"{name} is not text: give it a path instead of standard output")
    flags = {"summary": summary, "metrics": metrics, "syncs": syncs}
    options: dict[str, Any] = {flag: True for flag, given in flags.items() if given}
    if merge_into is not None:
        options["merge_into"] = merge_into
    for option in options:
        if option not in inspect.signature(exporter.write).parameters:
            raise click.UsageError(f"{name} has no option --{option.replace('_', '-')}")
    runs = [Run.load(file) for file in files]
    with _progress_bar(sum(len(run.spans) for run in runs)) as advance:
        if to_stdout:
            exporter.write(runs, sys.stdout.buffer, advance=advance, **options)
        else:
            exports.export(runs, output, name, advance=advance, **options)


@contextmanager
def _progress_bar(spans: int) -> Iterator[Callable[[int], None]]:
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
