# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu blame`: which commit made training slower."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import signal
import sys
from pathlib import Path

import click

from pyinstrument_gpu.analysis.compare import DEFAULT_MARGIN_PERCENT, Slowdown
from pyinstrument_gpu.analysis.contention import CONTENTION
from pyinstrument_gpu.blame import summary
from pyinstrument_gpu.blame.blame import DEFAULT_MAX_RUNS, FEWEST_RUNS, Blame
from pyinstrument_gpu.blame.commits import Checkouts, Commit, Repository
from pyinstrument_gpu.blame.journal import Journal
from pyinstrument_gpu.cli.compare import percent_option
from pyinstrument_gpu.cli.gate import (
    EXIT_SIGNAL,
    EXIT_UNCLEAR,
    json_file_option,
    progress_of,
    show_output_option,
    write_json,
)
from pyinstrument_gpu.gate.sides import CommandSide, editable_packages
from pyinstrument_gpu.parts.words import printable

_MOST_FILES = 5


@click.command()
@click.option(
    "--build",
    metavar="COMMAND",
    help="Run this shell command once in the checkout of each commit before the commit runs.",
)
@click.option(
    "--max-runs",
    type=click.IntRange(min=FEWEST_RUNS),
    default=DEFAULT_MAX_RUNS,
    show_default=True,
    metavar="N",
    help="Make up to N runs of all commits together.",
)
@percent_option(
    "--margin",
    "margin_percent",
    default=DEFAULT_MARGIN_PERCENT,
    show_default=True,
    help="Look for no change of PCT percent or less.",
)
@click.option(
    "--at-once",
    is_flag=True,
    help="Run commits at the same time, and compare what phases take undisturbed: for a program "
    f"without a GPU, under {CONTENTION}.",
)
@json_file_option
@click.option("--anew", is_flag=True, help="Don't go on from an earlier blame that was ended.")
@show_output_option
@click.argument("commits", metavar="GOOD..BAD")
@click.argument("command", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def blame(
    context: click.Context,
    /,
    commits: str,
    command: tuple[str, ...],
    build: str | None,
    max_runs: int,
    margin_percent: float,
    at_once: bool,
    json_file: Path | None,
    anew: bool,
    show_output: bool,
) -> None:
    """Find the commit that made training slower.

    Runs commits from GOOD to BAD in temporary checkouts, each under `pyinstrument-gpu run`, where
    they tell most, until it is known which commit made CMD (`python train.py`, for example) slower
    than the one before. Your own checkout is not touched. Commits that can't be run are passed
    over. After an interruption the same command goes on. docs/compare.md says how it works.

    Exit codes: 0 a commit was found; 1 GOOD or BAD can't be run; 2 wrong usage; 5 none was found.
    """
    good, dots, bad = commits.partition("..")
    if not dots or not good or not bad or bad.startswith("."):
        raise click.UsageError(f"write the commits as GOOD..BAD, not {commits!r}", context)
    repository = Repository(Path.cwd())
    series = repository.commits(good, bad)
    ends = series[0].sha, series[-1].sha
    question = json.dumps([*ends, command, build, repository.subfolder, at_once])
    folder = (
        repository.git_folder
        / "pyinstrument-gpu"
        / f"blame-{hashlib.sha256(question.encode()).hexdigest()[:12]}"
    )
    if anew:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal.of(folder)
    with contextlib.ExitStack() as leave:
        progress = leave.enter_context(progress_of(show_output))
        try:
            if journal.worktrees is not None:  # left by a blame that was killed
                repository.remove_worktrees(Path(journal.worktrees))
            checkouts = Checkouts(repository, build, show_output)
            leave.callback(checkouts.remove)
            journal.worktrees = str(checkouts.folder)
            journal.save(folder)

            def side_of(commit: Commit) -> CommandSide:
                return CommandSide(command, checkouts.of(commit), show_output)

            result = Blame(
                series, side_of, folder, journal, max_runs, margin_percent, progress, at_once
            ).result()
        except KeyboardInterrupt:
            progress.close()
            click.echo(
                f"Interrupted: {len(journal.runs)} runs are kept, and the same command goes on "
                "from there",
                sys.stderr,
            )
            context.exit(EXIT_SIGNAL + signal.SIGINT)
    print(summary.text(result))
    if changed := repository.uncommitted():
        files = ", ".join(changed[:_MOST_FILES]) + (", ..." if len(changed) > _MOST_FILES else "")
        print(printable(f"Uncommitted changes are not part of what was run: {files}"))
    if names := ", ".join(editable_packages(repository.root)):
        print(
            f"Warning: {names}: installed in editable mode from here. Unless the program finds the "
            "code of its own checkout first, all commits have run this code"
        )
    if json_file is not None:
        write_json(json_file, summary.facts(result))
    if result.suspects or result.ends.slowdown is Slowdown.NOT_SLOWER:
        shutil.rmtree(folder, ignore_errors=True)
    if not result.suspects:
        context.exit(EXIT_UNCLEAR)
