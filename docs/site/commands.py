# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import html
import inspect
import os
import re
from collections.abc import Iterator
from unittest import mock

import click

from pyinstrument_gpu.cli import main

_HEAD = """# Command line

What `pyinstrument-gpu COMMAND --help` says. There is a list of [exit
codes](../compare.md#exit-codes). The options of `run` can also stand in pyproject.toml, and all
options in the environment: see [settings](../api.md#settings).
"""


def commands_page() -> str:
    """A page in Markdown: for each command its usage, what it does, and a table of its options."""
    with mock.patch.dict(os.environ, clear=True):  # else defaults would be those of a variable
        group = click.Context(main, info_name="pyinstrument-gpu", **main.context_settings)
        parts = [_HEAD]
        for name in main.list_commands(group):
            command = main.get_command(group, name)
            assert command is not None
            context = click.Context(command, group, name, **command.context_settings)
            parts += [f"## {name}", *_command(command, context)]
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"```sh\n{context.command_path} {pieces}\n```"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        # click's mark for lines that are to stay as they are
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```"
        else:
            yield paragraph
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [option.get_help_record(context) for option in options]
    rows = [f"| `{names}` | {_cell(text)} |" for names, text in filter(None, records)]
    yield "\n".join(["| option | |", "|---|---|", *rows])


def _cell(text: str) -> str:
    """Text for a cell: what Markdown would take for marks is escaped."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    parts[::2] = [re.sub(r"([*_\[\]])", r"\\\1", html.escape(part)) for part in parts[::2]]
    return "".join(parts)
