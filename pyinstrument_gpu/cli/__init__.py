# SPDX-License-Identifier: Apache-2.0
"""The command `pyinstrument-gpu`: record programs, look at run files and export them.

Exit codes: 0 for success, 1 for an error (told on standard error), 2 for wrong usage, 4 for
`compare --fail-if-slower` and `gate` if training became slower, and 5 for `gate --strict` and
`blame` if that, or by which commit, is unclear. `run` ends with the exit code of its program, or
with 3 for `--fail-on-sync`.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import io
import keyword
import os
import sys
from typing import Any, cast

import click

from pyinstrument_gpu import plugins
from pyinstrument_gpu.cli.run import Leave, run_options
from pyinstrument_gpu.errors import PyinstrumentGpuError, RecordingError
from pyinstrument_gpu.recording.configuration import PREFIX, file_settings
from pyinstrument_gpu.version import __version__

_COMMANDS = {
    "run": "Run a Python program and record its phases and steps.",
    "watch": "Look at a recording while it goes on.",
    "why": "Say which rank of a job stopped first, or holds up the others.",
    "goodput": "Show what the time of a job went into, over all of its attempts.",
    "history": "Show what has become slower or faster over the runs of weeks, and since when.",
    "report": "Show where the time of each step went.",
    "export": "Write runs in another format, for other tools to read.",
    "compare": "Tell whether a change made training faster or slower.",
    "gate": "Fail if training has become slower: a test that does not flake.",
    "try": "Find edits that make a program faster, by trying them.",
    "blame": "Find the commit that made training slower.",
    "peak": "Measure how many floating-point operations a second this device can do.",
    "mcp": "Serve the runs below a folder to agents (Model Context Protocol).",
    "info": "Show what a run file contains and what is missing.",
    "completion": "Print a script that completes commands and options in your shell.",
}
"""Each but the last is the function of its name in the module of its name. What it does stands here
as well, so that a list of them imports none."""
_PROGRAM = "pyinstrument-gpu"
_COMPLETION_VARIABLE = "_PYINSTRUMENT_GPU_COMPLETE"
"""By which click tells that a shell asks; it is made of the program's name."""


def _is_command(found: object) -> bool:
    return isinstance(found, click.Command)


class _Commands(click.Group):
    """The commands, each imported when it is used, so that `run` does not wait for numpy.

    Errors are printed as one line instead of a traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *plugins.installed("commands")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS and cmd_name in plugins.installed("commands"):
            found = plugins.load("commands", cmd_name, _is_command)
            return cast("click.Command | None", found)
        if cmd_name in self.commands or cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = getattr(importlib.import_module(f"pyinstrument_gpu.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; a Python file in its place is a program to run."""
        if args[0] not in _COMMANDS and args[0] not in plugins.installed("commands"):
            if args[0].endswith(".py") and os.path.isfile(args[0]):
                args = ["run", *args]
            elif not args[0].startswith("-"):
                like = difflib.get_close_matches(args[0], _COMMANDS, n=1)
                meant = f" Did you mean {like[0]!r}?" if like else ""
                raise click.UsageError(f"there is no command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            added = plugins.installed("commands").items()
            of_plugins = [(name, f"Of the package {one.dist.name}.") for name, one in added]
            formatter.write_dl([*_COMMANDS.items(), *of_plugins])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except Leave as leave:
            run = leave.run
        # Out here, click makes nothing of the program's exceptions, and the program finds no
        # command of this package around its own.
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


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)
@click.version_option(
    __version__,
    prog_name=_PROGRAM,
    message="%(prog)s %(version)s",
    allow_from_autoenv=False,
)
@click.pass_context
def main(context: click.Context) -> None:
    """Time the phases of PyTorch training, and see where each step goes.

    RUN stands for a run file (.gpurun). `pyinstrument-gpu run` writes one, and so does
    pig.record(...) in your own program.
    """
    if context.invoked_subcommand == "run":
        settings = file_settings("run", run_options())
        context.default_map = {"run": {name: one.value for name, one in settings.items()}}
        return  # it leaves the process to its program, as it is
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A phase name may hold what the encoding of the output does not.
        sys.stdout.reconfigure(errors="backslashreplace")
    # At its end the interpreter would look for cycles in all that was imported, which takes a third
    # as long as importing numpy. All of it ends with the process in any case.
    atexit.register(gc.freeze)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in your shell.

    \b
    bash:  eval "$(pyinstrument-gpu completion bash)"      in ~/.bashrc
    zsh:   eval "$(pyinstrument-gpu completion zsh)"       in ~/.zshrc
    fish:  pyinstrument-gpu completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class  # no other command waits for it

    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(context.find_root().command, {}, _PROGRAM, _COMPLETION_VARIABLE).source())
