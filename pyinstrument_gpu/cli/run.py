# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run`: record a program."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click


class Leave(BaseException):
    """Asks for a program to be run once click is done."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


@click.command(context_settings={"allow_interspersed_args": False})
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
    # Not above: the other commands work where `launch` can't be imported, on Windows for example.
    from pyinstrument_gpu.launch.launch import Launch, LaunchOptions
    from pyinstrument_gpu.launch.program import Program

    if not is_module and not os.path.exists(program):
        raise click.UsageError(f"there is no program {program!r}")
    if no_sync_watch and (options["as_if_cuda"] or options["fail_on_sync"]):
        raise click.UsageError("--as-if-cuda and --fail-on-sync need the sync watch")
    chosen = LaunchOptions(sync_watch=not no_sync_watch, **options)
    launch = Launch(Program(program, arguments, is_module), chosen)
    raise Leave(launch.run)
