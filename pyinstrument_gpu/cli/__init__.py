# SPDX-License-Identifier: Apache-2.0
"""The command `pyinstrument-gpu`: record programs, look at run files and export them.

Exit codes: 0; 1 for an error, which is one line on standard error; 2 for wrong usage; 4 for
`compare --fail-if-slower`. `run` ends as the program does that it runs, or with 3 for
`--fail-on-sync`.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from pyinstrument_gpu import __version__
from pyinstrument_gpu.errors import ExportError, PyinstrumentGpuError, RecordingError

_EXIT_SLOWER = 4


class _Leave(BaseException):
    """Asks for a program to be run once click is done."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


class _Commands(click.Group):
    """A group whose commands fail with one line instead of a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except _Leave as leave:
            run = leave.run
        # Out here, click makes nothing of the program's exceptions, and the program finds no
        # command of ours around its own.
        try:
            run()
        except RecordingError as error:
            print(f"Error: {error}", file=sys.stderr)
            sys.exit(1)

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
@click.pass_context
def main(context: click.Context) -> None:
    """Record programs, look at the runs that were recorded, and export them."""
    # The program that is run finds it as it would without us.
    if isinstance(sys.stdout, io.TextIOWrapper) and context.invoked_subcommand != "run":
        # A phase name may hold what the encoding of the output does not.
        sys.stdout.reconfigure(errors="backslashreplace")


@main.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The run file; a new one in the working directory by default.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Begin to record after N steps.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Record N steps, then only run on."
)
@click.option("--no-sync-watch", is_flag=True, help="Do not look for syncs.")
@click.option(
    "--as-if-cuda",
    is_flag=True,
    help="Count what would make the program wait if its tensors lay on a GPU.",
)
@click.option(
    "--fail-on-sync",
    is_flag=True,
    help="Exit with 3 if a step waits for the GPU and the program does not fail itself.",
)
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    program: str,
    arguments: tuple[str, ...],
    is_module: bool,
    no_sync_watch: bool,
    **options: Any,
) -> None:
    """Run a Python program with phases and steps placed automatically.

    The program runs as it does without; options behind PROGRAM are its own. The report comes at its
    end on standard error, and the run file is kept.
    """
    from pyinstrument_gpu.launch.launch import Launch, LaunchOptions
    from pyinstrument_gpu.launch.program import Program

    if not is_module and not os.path.exists(program):
        raise click.UsageError(f"there is no program {program!r}")
    if no_sync_watch and (options["as_if_cuda"] or options["fail_on_sync"]):
        raise click.UsageError("--as-if-cuda and --fail-on-sync need the sync watch")
    chosen = LaunchOptions(sync_watch=not no_sync_watch, **options)
    launch = Launch(Program(program, arguments, is_module), chosen)
    raise _Leave(launch.run)


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
    from pyinstrument_gpu import export as exports
    from pyinstrument_gpu.cli.progress import progress_bar
    from pyinstrument_gpu.export.atomic_file import check_replaceable
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
    flags = {"summary": summary, "metrics": metrics, "syncs": syncs}
    options: dict[str, Any] = {flag: True for flag, given in flags.items() if given}
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


class _ManyFiles(click.Command):
    """A command whose options --before and --after take all that follows them, up to the next
    option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        side: str | None = None
        for argument in args:
            if argument in ("--before", "--after"):
                side = argument
            elif argument.startswith("-") or side is None:
                side = None
                spread.append(argument)
            else:
                spread += [side, argument]
        return super().parse_args(ctx, spread)


@main.command(cls=_ManyFiles)
@click.option(
    "--before", metavar="RUN...", multiple=True, required=True, help="Without the change."
)
@click.option("--after", metavar="RUN...", multiple=True, required=True, help="With the change.")
@click.option(
    "--noise",
    "noise_percent",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PCT",
    help="By how much runs differ by themselves, as a standard deviation: a floor.",
)
@click.option(
    "--margin",
    "margin_percent",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="PCT",
    help="Up to which difference times are called the same; 1 by default.",
)
@click.option(
    "--fail-if-slower",
    "fail_percent",
    type=click.FloatRange(min=0),
    metavar="PCT",
    help="Exit with 4 if the verdict is SLOWER, by more than that.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def compare(
    context: click.Context,
    /,
    before: tuple[str, ...],
    after: tuple[str, ...],
    fail_percent: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether a change made training faster, slower or neither, and what only moved.

    Give several runs a side: the steps of one run are one observation.
    """
    from pyinstrument_gpu.analysis.compare import Verdict
    from pyinstrument_gpu.analysis.compare import compare as compare_runs
    from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
    from pyinstrument_gpu.run import Run

    try:
        comparison = compare_runs(
            *([Run.load(f) for f in side] for side in (before, after)), **options
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print(json.dumps(comparison_facts(comparison), indent=2))
    else:
        print(comparison_report(comparison))
    is_slower = comparison.verdict is Verdict.SLOWER
    if fail_percent is not None and is_slower and 100 * comparison.change > fail_percent:
        context.exit(_EXIT_SLOWER)


@main.command()
@click.argument("file", metavar="[RUN]", required=False)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure each so many times at most; a few seconds long by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def overhead(file: str | None, rounds: int | None, as_json: bool) -> None:
    """Measure what a phase costs on this machine, beside its peers, in seconds.

    With RUN: also which share of that run's step its phases would take.
    """
    from pyinstrument_gpu.overhead.phase_costs import ROUNDS, measure_phase_costs
    from pyinstrument_gpu.overhead.run_step import RunStep
    from pyinstrument_gpu.recording import environment
    from pyinstrument_gpu.report.overhead import overhead_facts, overhead_report
    from pyinstrument_gpu.run import Run

    # First: a file that can't be read is no reason to wait.
    step = None
    if file is not None:
        try:
            step = RunStep.of(Run.load(file))
        except ValueError as error:
            raise click.ClickException(f"{click.format_filename(file)}: {error}") from error
    costs = measure_phase_costs(rounds=ROUNDS if rounds is None else rounds)
    if as_json:
        facts = {"environment": environment.gather(), **overhead_facts(costs, step)}
        print(json.dumps(facts, indent=2))
    else:
        print(overhead_report(costs, step))


@main.command()
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def info(file: str, as_json: bool) -> None:
    """Print what a run file holds: environment, counts, what is missing."""
    from pyinstrument_gpu.report.table import printable
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
