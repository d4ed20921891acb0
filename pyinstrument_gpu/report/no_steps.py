# SPDX-License-Identifier: Apache-2.0
"""The text on a program that ran under `pyinstrument-gpu run` without a training step."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from pyinstrument_gpu.core.program_facts import CHILDREN, is_python

if TYPE_CHECKING:
    from pyinstrument_gpu.core.run import Run

_LAUNCHERS = ("torchrun", "accelerate")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_MUCH_S = 1.0
_IN_EACH = (
    'put `with pyinstrument_gpu.record(f"train.rank{rank}.gpurun", overwrite=True), '
    "pyinstrument_gpu.auto_phases():` around the training in each of them"
)


def no_steps(run: Run) -> str:
    """Return what its process did instead, and what to do if its child processes train."""
    if "torch" not in run.environment:
        seen = "this process did not import torch"
    elif not run.phases:
        seen = "this process imported torch, but nothing of a training loop was seen"
    else:
        counts = ", ".join(f"{phase.count} {path}" for path, phase in run.phases.items())
        seen = f"this process ran no training step, only {counts}"
        if any(path.startswith("compiled") for path in run.phases):
            seen += (
                "; what runs inside a compiled function is only seen to be training if it updates "
                "the parameters of a torch.optim optimizer in place, so if this does train, loop "
                "with pyinstrument_gpu.gpu_steps"
            )
    children_s = run.environment.get(CHILDREN, 0.0)
    if children_s >= 0.05:
        seen += (
            f"; its child processes, which are not recorded, used {children_s:.1f} s of CPU time"
        )
    if children_s >= _MUCH_S:
        command = _launched(run.environment.get("command", []))
        seen += f". If they train, {_IN_EACH if command is None else f'run `{command}`'}"
    return seen


def _launched(command: Sequence[str]) -> str | None:
    """The command with which the launcher that it runs has each rank recorded, with the options
    that were given here; None if there is no launcher, or it can't be seen where the program of the
    ranks is."""
    names = [os.path.basename(word) for word in command]
    begin = next(
        (i for i, name in enumerate(names) if name in _LAUNCHERS + _LAUNCHER_MODULES), None
    )
    if begin is None:
        return None
    given = command[command.index("run") + 1 : begin] if "run" in command[:begin] else ()
    options = [word for word in takewhile(lambda word: not is_python(word), given) if word != "-m"]
    launcher = [names[begin]]
    if names[begin] in _LAUNCHER_MODULES:
        launcher = ["python", "-m", *launcher]
    for i in range(begin + 1, len(command)):
        if command[i].endswith(".py") or command[i] in ("-m", "--module"):
            program = ["-m" if command[i] == "--module" else command[i], *command[i + 1 :]]
            own = ["-m", "pyinstrument_gpu", "run", *options]
            return shlex.join([*launcher, *command[begin + 1 : i], *own, *program])
    return None
