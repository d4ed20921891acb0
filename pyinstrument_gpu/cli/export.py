# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu export`: write runs in another format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click

from pyinstrument_gpu import export as exports
from pyinstrument_gpu.cli.run_paths import found_runs, say_what_is_left_out
from pyinstrument_gpu.core.file.run_files import check_replaceable, is_run_file
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.runs import NoStartTimeError, losses
from pyinstrument_gpu.parts.words import printable

_Command: TypeAlias = Callable[..., None]

_LONG_SPANS = 500_000  # fewer take less than a second

_STANDARD_OUTPUT = next(iter(exports.FORMATS))

_HELP = f"""Write runs in another format, for other tools to read.

Several RUNs, the ranks of one job, go into one output. A RUN may also be a folder, which stands
for the run files in it. The suffix of OUT chooses the format:

\b
{{suffixes}}

A run that lacks spans, or was cut short, is named on standard error.

{{by_name}} Standard output (-o -) is {_STANDARD_OUTPUT} unless --format names another text format.
"""


def _help() -> str:
    formats = exports.formats().items()
    suffixes = [
        f"  {'OUT/' if suffix == exports.FOLDER else suffix:<12} {what}"
        for _, exporter in formats
        for suffix, what in exporter.suffixes.items()
    ]
    by_name = [
        f"--format {name} writes {exporter.by_name} OUT."
        for name, exporter in formats
        if exporter.by_name
    ]
    return _HELP.format(suffixes="\n".join(suffixes), by_name=" ".join(by_name))


def _with_format_options(command: _Command) -> _Command:
    """Give a command the options of all formats."""
    options = {
        name: each for format in exports.formats().values() for name, each in format.options.items()
    }
    for name, (what, metavar) in reversed(options.items()):
        formats = ", ".join(exports.formats_with(name))
        flag = f"--{name.replace('_', '-')}"
        option = click.option(
            flag, is_flag=metavar is None, metavar=metavar, help=f"{formats}: {what}."
        )
        command = option(command)
    return command


@click.command(options_metavar="-o OUT [OPTIONS]", help=_help())
@click.argument("given", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="OUT", help="Write to this file or folder, or to standard output (-)."
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(exports.formats())),
    help="Use this format, whatever the suffix of OUT.",
)
@_with_format_options
def export(
    given: tuple[str, ...], output: str | None, format_name: str | None, **asked: Any
) -> None:
    if output is None:
        *runs_before, last = given
        # `export RUN... OUT`, unless OUT was forgotten and this is one of the runs.
        if not runs_before or Path(last).suffix == ".gpurun" or is_run_file(last):
            raise click.UsageError("no output: say -o OUT, for example -o trace.json")
        given, output = tuple(runs_before), last
    to_stdout = output == "-"
    options = {option: value for option, value in asked.items() if value not in (None, False)}
    try:
        name = exports.format_for(output, format_name or (_STANDARD_OUTPUT if to_stdout else None))
        if not to_stdout:
            check_replaceable(output)
    except ExportError as error:
        raise click.UsageError(str(error)) from error
    exporter = exports.formats()[name]
    if to_stdout and exporter.output != "text":
        raise click.UsageError(f"{name} is not a text format: write it to a file with -o OUT")
    for option in options:
        if option not in exporter.options:
            raise click.UsageError(
                f"{name} has no option --{option.replace('_', '-')}; it is for "
                f"{', '.join(exports.formats_with(option))}"
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
    if not to_stdout:
        print(f"Wrote {click.format_filename(output)}", file=sys.stderr)
    for file, run in zip(names, runs, strict=True):
        lacking = losses(run, is_summary="summary" in options)
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
