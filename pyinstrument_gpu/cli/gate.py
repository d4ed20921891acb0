# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu gate`: fail where training has become slower, and only there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from pyinstrument_gpu.analysis.compare import DEFAULT_MARGIN_PERCENT, MIN_RUNS, Slowdown
from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.cli.compare import EXIT_SLOWER, percent_option, price_option
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate import summary
from pyinstrument_gpu.gate.gate import DEFAULT_RUNS, Gate, Plan, Progress
from pyinstrument_gpu.gate.sides import CommandSide, command_sides, editable_packages

EXIT_UNCLEAR = 5
EXIT_SIGNAL = 128


def _in_a_folder(context: click.Context, _: click.Parameter, file: Path | None) -> Path | None:
    """Check the folder before anything runs, not when there is a result to write."""
    if file is not None and not file.absolute().parent.is_dir():
        raise click.UsageError(f"--json: {file.absolute().parent} is not a directory", context)
    return file


json_file_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=_in_a_folder,
    help="Also write the result to FILE as JSON.",
)
show_output_option = click.option(
    "--show-output", is_flag=True, help="Show what the commands write."
)


@contextlib.contextmanager
def progress_of(show_output: bool) -> Iterator[Progress]:
    """Show the progress of a command that runs others. Meanwhile a signal to end raises, so that
    what runs is ended, too."""
    with contextlib.ExitStack() as leave:
        progress = Progress(sys.stderr, in_one_line=not show_output)
        leave.callback(progress.close)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under `nohup`
                leave.callback(signal.signal, number, signal.signal(number, _end))
        yield progress


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(EXIT_SIGNAL + number)


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="--baseline CMD_OR_DIR [OPTIONS]",
)
@click.option(
    "--baseline",
    metavar="CMD_OR_DIR",
    required=True,
    help="The baseline: a directory in which the same command runs the old code, a "
    "checkout for example, or a command of its own. '.' compares the code with itself, which "
    "shows what can be seen on this machine.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=MIN_RUNS // 2),
    default=DEFAULT_RUNS,
    show_default=True,
    metavar="N",
    help="Run each side N times, in turn, before the first look.",
)
@click.option(
    "--max-runs",
    type=click.IntRange(min=MIN_RUNS // 2),
    metavar="N",
    help="Run each side up to N times while the result is unclear.  [default: 3 times --runs]",
)
@percent_option(
    "--fail-if-slower",
    "limit_percent",
    default=0.0,
    help="Fail only if the candidate is slower by more than PCT percent: if the whole interval "
    "lies above.  [default: fail if it is slower at all]",
)
@percent_option(
    "--margin",
    "margin_percent",
    default=DEFAULT_MARGIN_PERCENT,
    show_default=True,
    help="Pass if the candidate is slower by PCT percent at most, even if that is certain.",
)
@price_option
@click.option("--strict", is_flag=True, help="Exit with code 5 if the result is unclear.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the runs and what the commands wrote in this new directory.",
)
@json_file_option
@show_output_option
@click.argument("command", metavar="[--] CMD...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def gate(
    context: click.Context,
    /,
    command: tuple[str, ...],
    baseline: str,
    strict: bool,
    output: Path | None,
    json_file: Path | None,
    show_output: bool,
    **options: Any,
) -> None:
    """Fail if training has become slower: a test that does not flake.

    Runs the baseline and the command CMD (`python train.py`, for example) in turn, each under
    `pyinstrument-gpu run`, and compares them as `compare` does. While the result is unclear, more
    runs are made. Prints a summary in Markdown, which on GitHub also goes to the summary of the
    job. docs/compare.md has the rules.

    Exit codes: 0 not slower, or unclear; 1 a command failed, or the sides can't be compared; 2
    wrong usage; 4 slower; 5 unclear, with --strict.
    """
    try:
        plan = Plan(**options)
        sides = command_sides(baseline, command, show_output)
    except (ValueError, GateError) as error:
        raise click.UsageError(str(error), context) from error
    with contextlib.ExitStack() as leave:
        if output is None:
            place = Path(
                leave.enter_context(tempfile.TemporaryDirectory(prefix="pyinstrument-gpu-gate-"))
            )
        else:
            place = output
        progress = leave.enter_context(progress_of(show_output))
        running = Gate(sides, plan, place, progress, known=_known(sides[0]))
        if output is not None:
            output.mkdir(parents=True)
        try:
            result = running.result()
        except KeyboardInterrupt:
            progress.close()
            kept = f"; they are in {output}" if output is not None else ""
            click.echo(
                f"Interrupted: {len(running.order)} runs were made, which is no result{kept}",
                sys.stderr,
            )
            context.exit(EXIT_SIGNAL + signal.SIGINT)
    text = summary.markdown(result)
    print(text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append(page, text)
    if json_file is not None:
        write_json(json_file, summary.facts(result))
    if result.is_slower:
        context.exit(EXIT_SLOWER)
    if strict and result.slowdown is Slowdown.UNCLEAR:
        context.exit(EXIT_UNCLEAR)


def _known(baseline: CommandSide) -> list[str]:
    """Return what there is to say about the sides before they run."""
    if baseline.working_directory is None:
        return []
    names = ", ".join(editable_packages(Path.cwd()))
    if not names:
        return []
    return [
        f"{names}: installed in editable mode from here. Unless the program finds the code of "
        "the baseline's directory first, both sides import this code"
    ]


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Write a result."""
    with atomic_write(path) as file:
        file.write(json.dumps(facts, indent=2).encode() + b"\n")


def _append(page: str, text: str) -> None:
    """Write to the summary of a job. The result holds whether or not that succeeds."""
    try:
        with open(page, "a", encoding="utf-8") as file:
            file.write(text + "\n\n")
    except OSError as error:
        why = error.strerror or error
        click.echo(f"Warning: $GITHUB_STEP_SUMMARY can't be written: {page}: {why}", err=True)
