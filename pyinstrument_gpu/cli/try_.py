# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu try`: which edits make a program faster, by trying them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.cli.gate import json_file_option, progress_of, write_json
from pyinstrument_gpu.report.console import for_terminal
from pyinstrument_gpu.trial import summary
from pyinstrument_gpu.trial.edits.edit import Changes
from pyinstrument_gpu.trial.edits.table import edits
from pyinstrument_gpu.trial.trials import TrialRunner
from pyinstrument_gpu.trial.tries import Tries
from pyinstrument_gpu.trial.working_copy import WorkingCopy

_ALLOWED = {
    "nothing": Changes.DRAWS,
    "last-digits": Changes.LAST_DIGITS,
    "results": Changes.RESULTS,
}


def _groups(ctx: click.Context, option: click.Parameter, value: str | None) -> frozenset[str]:
    known = sorted({edit.group for edit in edits().values()})
    wanted = frozenset((value or "").split(",")) - {""}
    if unknown := sorted(wanted - set(known)):
        raise click.BadParameter(f"{', '.join(unknown)} is none of {', '.join(known)}", ctx, option)
    return wanted


@click.command("try", context_settings={"allow_interspersed_args": False})
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="About how long trials may take.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=5),
    metavar="N",
    help="End each trial after N steps.  [default: as many as fit]",
)
@click.option(
    "--only",
    metavar="GROUPS",
    callback=_groups,
    help="Try edits of these groups only: loader, "
    "threads, optimizer, gc, model, compile, memory, modes, precision and others, by commas.",
)
@click.option(
    "--allow",
    type=click.Choice([*_ALLOWED]),
    default="last-digits",
    show_default=True,
    help="The most that an edit may change of the training's results.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Run trials in the working directory, not in copies of it: the program writes there.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="NAME",
    help="Link this file or folder of the working directory in each copy, as it is too large to be "
    "copied; the program should only read it. May be given several times.",
)
@click.option(
    "--write-outside",
    is_flag=True,
    help="Go on if the program writes outside of the working directory, which each trial does.",
)
@click.option(
    "--patch",
    "patch_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("try.diff"),
    show_default=True,
    metavar="FILE",
    help="Write the winning edits to FILE as a diff.",
)
@json_file_option
@click.argument("command", metavar="CMD...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def try_(
    context: click.Context,
    /,
    command: tuple[str, ...],
    minutes: float,
    steps: int | None,
    only: frozenset[str],
    allow: str,
    in_place: bool,
    links: tuple[str, ...],
    write_outside: bool,
    patch_file: Path,
    json_file: Path | None,
) -> None:
    """Find edits that make a program faster, by trying them.

    Runs CMD (`train.py`, or `python train.py`, for example) with one edit after the other, such as
    other loader workers, threads or optimizers, without changing your files. Each trial is ended
    after the same number of steps, and runs in a copy of the working directory. Prints which edits
    make it faster, by how much in runs of their own, and whether the results are the same, and
    writes them as a patch. Ctrl-C gives what is known by then. docs/try.md says how it works.

    Exit codes: 0, also where nothing makes it faster; 1 the program fails; 2 wrong usage.
    """
    if patch_file.exists():
        raise click.UsageError(f"--patch: {patch_file} exists: remove it, or name another", context)
    with tempfile.TemporaryDirectory(prefix="pyinstrument-gpu-try-") as place:
        folder = Path(os.path.realpath(place))
        copy = None if in_place else WorkingCopy(Path.cwd(), folder, links)
        with progress_of(show_output=False) as progress:
            runner = TrialRunner(command, folder, copy)
            tries = Tries(runner, copy, write_outside, progress.show_left)
            result = tries.run(60 * minutes, steps, only, _ALLOWED[allow])
        text = for_terminal(result.parts(str(patch_file)))  # which looks into the copy
    if result.patch.diff:
        with atomic_write(patch_file) as file:
            file.write(result.patch.diff)
    print(text)
    if json_file is not None:
        write_json(json_file, summary.facts(result.outcome, result.verdict, result.patch))
