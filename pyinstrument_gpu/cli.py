# SPDX-License-Identifier: Apache-2.0
"""The command `pyinstrument-gpu`: look at run files and export them.

Exit codes: 0; 1 for an error, which is one line on standard error; 2 for wrong usage.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import sys
from typing import Any

import click

from pyinstrument_gpu import __version__
from pyinstrument_gpu.errors import ExportError, PyinstrumentGpuError


class _Commands(click.Group):
    """A group whose commands fail with one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends without a message: the reader, `head` for example, has had enough
        except OSError as error:
            place = f"{os.fspath(error.filename)}: " if error.filename is not None else ""
            raise click.ClickException(f"{place}{error.strerror or error}") from error
        except PyinstrumentGpuError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pyinstrument-gpu", message="%(prog)s %(version)s")
def main() -> None:
    """Look at the runs that pyinstrument_gpu recorded, and export them."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A phase name may hold what the encoding of the output does not.
        sys.stdout.reconfigure(errors="backslashreplace")


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--step", type=int, metavar="N", help="Show one step alone, by its index.")
@click.option("--width", type=click.IntRange(min=20), help="Columns; the terminal's by default.")
def report(files: tuple[str, ...], step: int | None, width: int | None) -> None:
    """Print where the steps of each run went."""
    from pyinstrument_gpu.run import Run

    for i, file in enumerate(files):
        shown = click.format_filename(file)
        try:
            text = Run.load(file).report(step=step, width=width)
        except KeyError as error:
            raise click.ClickException(f"{shown}: {error.args[0]}") from error
        if len(files) > 1:
            print(f"=== {shown}" if i == 0 else f"\n=== {shown}")
        print(text)


@main.command()
@click.argument("files", metavar="RUN...", nargs=-1, required=True)
@click.argument("output", metavar="OUT")
@click.option("--format", "format_name", metavar="NAME", help="The format; by suffix by default.")
@click.option(
    "--summary", is_flag=True, help="CSV, Parquet: one row per phase instead of one per span."
)
@click.option(
    "--merge-into", metavar="REPORT", help="Nsight: lay it over a report of nsys profile."
)
def export(
    files: tuple[str, ...],
    output: str,
    format_name: str | None,
    summary: bool,
    merge_into: str | None,
) -> None:
    """Write a run, or the ranks of one job, to OUT in another format.

    A folder (OUT/) takes Parquet files, one per rank. "-" is standard output, for formats that are
    text; as CSV by default.
    """
    from pyinstrument_gpu import export as exports
    from pyinstrument_gpu.export.replacing import check_replaceable
    from pyinstrument_gpu.progress import progress_bar
    from pyinstrument_gpu.run import Run

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
    options: dict[str, Any] = {"summary": True} if summary else {}
    if merge_into is not None:
        options["merge_into"] = merge_into
    for option in options:
        if option not in inspect.signature(exporter.write).parameters:
            raise click.UsageError(f"{name} has no option --{option.replace('_', '-')}")
    runs = [Run.load(file) for file in files]
    with progress_bar(sum(len(run.spans) for run in runs)) as advance:
        if to_stdout:
            exporter.write(runs, sys.stdout.buffer, advance=advance, **options)
        else:
            exports.export(runs, output, name, advance=advance, **options)


@main.command()
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def info(file: str, as_json: bool) -> None:
    """Print what a run file holds: environment, counts, what is missing."""
    from pyinstrument_gpu.report.layout import printable
    from pyinstrument_gpu.run import Run

    run = Run.load(file)
    facts: dict[str, Any] = {
        "file": os.fspath(click.format_filename(file)),
        "file_bytes": os.path.getsize(file),
        "complete": run.complete,
        "duration_ns": run.duration_ns,
        "steps": run.step_totals.count,
        "steps_kept": len(run.steps),
        "spans": run.phases_recorded,
        "spans_kept": len(run.spans),
        "phases": len(run.phases),
        "threads": [thread.name for thread in run.threads],
        "open_phases": [dataclasses.asdict(phase) for phase in run.open_phases],
        "open_step": dataclasses.asdict(run.open_step) if run.open_step is not None else None,
        "dropped": {cause: count for cause, count in run.dropped.items() if count},
        "notes": list(run.notes),
        "environment": run.environment,
    }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    facts.update(facts.pop("environment"))
    width = max(map(len, facts))
    for key, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{printable(key):{width}}  {printable(text)}")
