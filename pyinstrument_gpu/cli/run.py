# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run`: record a program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pyinstrument_gpu.core.program_facts import is_python
from pyinstrument_gpu.recording.configuration import file_settings, variable
from pyinstrument_gpu.recording.hang_program import check_call

_WITHOUT_VALUE = {"--modules": "=coarse", "--nonfinite": "=100"}


class Leave(BaseException):
    """Asks for a program to be run after click has returned."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


_MOST_USED = ("is_module", "output", "overwrite", "html", "no_report")


def _without_python(args: list[str], at: int) -> list[str]:
    """The arguments without the name of an interpreter in front of the program, as people copy it
    from their command line: the program runs in this one."""
    if at < len(args) and is_python(args[at]):
        del args[at]
        while at < len(args) and args[at] in ("-u", "-B"):
            del args[at]
    return args


class _RunCommand(click.Command):
    """`--modules` and `--nonfinite` without a value would take PROGRAM for one."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two groups: common ones, and those that say what is recorded."""
        groups: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        *options, help_option = self.get_params(ctx)
        for option in (help_option, *options):
            record = option.get_help_record(ctx)
            if isinstance(option, click.Option) and record is not None:
                groups[option is help_option or option.name in _MOST_USED].append(record)
        for is_most_used, title in ((True, "Options"), (False, "What is recorded")):
            with formatter.section(title):
                formatter.write_dl(groups[is_most_used])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            args[at] += _WITHOUT_VALUE.get(args[at], "")
            at += 2 if args[at] in with_value else 1
        args = _without_python(args, at)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            program = next((place for place, one in enumerate(args) if one.endswith(".py")), None)
            if program is None:
                raise
            raise click.UsageError(
                f"run has no option {error.option_name}. Options of the program go behind it: "
                f"pyinstrument-gpu run {args[program]} {error.option_name} ...",
                ctx,
            ) from None
        except click.BadParameter as error:
            name = None if error.param is None else error.param.name
            source = None if name is None else ctx.get_parameter_source(name)
            if name is None or source not in ELSEWHERE:
                raise
            message = f"{error.message} (from {ELSEWHERE[source](name)})"
            raise click.BadParameter(message, ctx, error.param) from None


ELSEWHERE: dict[ParameterSource | None, Callable[[str], str]] = {
    ParameterSource.ENVIRONMENT: lambda name: variable("run", name),
    ParameterSource.DEFAULT_MAP: lambda name: file_settings("run", run_options())[name].source,
}
"""Where a value stands that is not on the command line."""


def _check_selection(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error
    return value


def _check_call(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            check_call(value)
        except ValueError as error:
            raise click.BadParameter(
                f"{value!r} is neither a command nor a URL: {error}"
            ) from error
    return value


@click.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "-m",
    "is_module",
    is_flag=True,
    allow_from_autoenv=False,
    help="Run PROGRAM as a module, like python -m.",
)
@click.option(
    "-o",
    "--output",
    metavar="RUN",
    help="Write the run to this file; its folder is made if needed.  [default: a new "
    "PROGRAM-DATE-TIME.gpurun in the working directory]",
)
@click.option("--overwrite", is_flag=True, help="Replace RUN if it is a run file already.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start recording after N steps.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop recording after N recorded steps; the program runs on.",
)
@click.option(
    "--no-sync-watch", is_flag=True, help="Don't look for lines that make the CPU wait for the GPU."
)
@click.option(
    "--as-if-cuda",
    is_flag=True,
    help="Preview GPU syncs without a GPU: report the lines that would wait for one.",
)
@click.option(
    "--fail-on-sync",
    is_flag=True,
    help="Exit with code 3 if a step waited for the GPU and the program itself succeeded.",
)
@click.option(
    "--modules",
    metavar="[=coarse|all|REGEX]",
    callback=_check_selection,
    help="Time the modules of the model too, forward and backward: the blocks and their parts "
    "(coarse, also if no value is given), all, or those whose names match.",
)
@click.option(
    "--modules-every",
    type=click.IntRange(min=1, max=1_000_000),
    metavar="N",
    help="Time modules in one of every N steps.  [default: as many as cost at most 0.2 % of the "
    "time]",
)
@click.option(
    "--profile-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Profile N steps with torch.profiler, by phase and module.",
)
@click.option(
    "--profile-at",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="The first step to profile, counted from 0 as in the report.  [default: 10]",
)
@click.option(
    "--keep-trace",
    metavar="FILE",
    help="Keep torch.profiler's own trace, as .json or .json.gz for Perfetto.",
)
@click.option(
    "--memory",
    type=click.Choice(["sampled", "exact", "off"]),
    default="sampled",
    show_default=True,
    help="Read memory where phases begin and end: in some of the steps, or in all of them with the "
    "exact peak of each phase on a GPU.",
)
@click.option(
    "--oom-snapshot/--no-oom-snapshot",
    default=True,
    help="Save the allocator's snapshot beside the run when a GPU has no memory left.",
)
@click.option(
    "--flops",
    is_flag=True,
    help="Count the floating-point operations of one step, which is profiled for it, to know how "
    "much of its peak the device reaches.",
)
@click.option("--energy", is_flag=True, help="Read the GPU's energy counter, ten times a second.")
@click.option(
    "--nonfinite",
    metavar="[=EVERY]",
    type=click.IntRange(min=1),
    help="Find the module that makes the first NaN or infinite value: in one of EVERY steps, by "
    "default in one of 100.",
)
@click.option(
    "--stop-on-nonfinite",
    is_flag=True,
    help="End the program once that is known, with a NonFiniteError. Implies --nonfinite.",
)
@click.option(
    "--stacks/--no-stacks",
    default=True,
    help="Sample the main thread's Python stack, for the lines that each phase consists of.",
)
@click.option(
    "--aspect",
    "aspects",
    multiple=True,
    metavar="NAME",
    help="Also record this aspect of an installed plug-in; may be given several times.",
)
@click.option(
    "--compiled-phases",
    is_flag=True,
    help="Time phases inside of what torch.compile compiles too, by marks in its code.",
)
@click.option(
    "--watchdog",
    type=click.FloatRange(min=0, max=1e9),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Say where the program is if nothing happens for this long, and for ten times as long as "
    "steps take. Until ten steps have ended, it takes three times as long. 0 turns it off.",
)
@click.option(
    "--on-hang",
    metavar="COMMAND|URL",
    callback=_check_call,
    help="When the watchdog fires, run this command, or POST to this http(s) URL, with the JSON of "
    "why: once for all ranks. A command is run without a shell, and gets the JSON as its standard "
    "input.",
)
@click.option(
    "--time-collectives",
    is_flag=True,
    help="Have PyTorch time NCCL's operations on the GPU: sets TORCH_NCCL_ENABLE_TIMING=1.",
)
@click.option(
    "--html",
    is_flag=True,
    help="Also write the report as an HTML page, beside RUN and with its name.",
)
@click.option(
    "-q",
    "--quiet",
    "--no-report",
    "no_report",
    is_flag=True,
    help="Don't print the report.",
)
@click.option("--trial", hidden=True, allow_from_autoenv=False)
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    program: str,
    arguments: tuple[str, ...],
    is_module: bool,
    no_sync_watch: bool,
    trial: str | None,
    **options: Any,
) -> None:
    """Run a Python program and record its phases and steps.

    Phases and steps are placed automatically. The program behaves as if run directly; options after
    PROGRAM go to it. When it ends, the report is printed to standard error and the run file is
    kept.
    """
    # Not above: the other commands work where `launch` can't be imported, on Windows for example.
    from pyinstrument_gpu.launch.launch import Launch, LaunchOptions
    from pyinstrument_gpu.launch.program import Program

    if trial is not None:  # of `pyinstrument-gpu try`: nothing is recorded
        from pyinstrument_gpu.trial.child import Trial

        raise Leave(Trial(Program(program, arguments, is_module), Path(trial)).run)
    if no_sync_watch and (options["as_if_cuda"] or options["fail_on_sync"]):
        raise click.UsageError(
            "--no-sync-watch can't be combined with --as-if-cuda or --fail-on-sync"
        )
    if options["modules_every"] is not None and options["modules"] is None:
        raise click.UsageError("--modules-every needs --modules")
    if options["profile_steps"] is None:
        for option in ("profile_at", "keep_trace"):
            if options[option] is not None:
                name = option.replace("_", "-")
                raise click.UsageError(f"--{name} needs --profile-steps")
    flags = {flag for option in run.params for flag in option.opts if flag.startswith("--")}
    of_program = itertools.takewhile(lambda word: word != "--", arguments)
    words = (word.partition("=")[0] for word in of_program)
    misplaced = next((word for word in words if word in flags), None)
    chosen = LaunchOptions(sync_watch=not no_sync_watch, misplaced=misplaced, **options)
    raise Leave(Launch(Program(program, arguments, is_module), chosen).run)


def run_options() -> dict[str, object]:
    """The options that settings may give, with their defaults."""
    return {
        option.name: option.default
        for option in run.params
        if isinstance(option, click.Option) and option.name not in (None, "is_module", "trial")
    }
