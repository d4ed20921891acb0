# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu completion`: print the script by which a shell completes commands and
options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "pyinstrument-gpu"
_VARIABLE = "_PYINSTRUMENT_GPU_COMPLETE"
"""By which click tells that a shell asks; it is made of the program's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in your shell.

    \b
    bash:  eval "$(pyinstrument-gpu completion bash)"      in ~/.bashrc
    zsh:   eval "$(pyinstrument-gpu completion zsh)"       in ~/.zshrc
    fish:  pyinstrument-gpu completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(context.find_root().command, {}, _PROGRAM, _VARIABLE).source())
