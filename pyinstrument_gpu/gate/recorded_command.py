# SPDX-License-Identifier: Apache-2.0
"""A command line that trains, as one that does the same under `pyinstrument-gpu run`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence

from pyinstrument_gpu.errors import GateError

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*t?")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)


class RecordedCommand:
    """A command line, and where its Python program is in it.

    Any of `train.py ...`, `-m package.train ...`, `python train.py ...`, the last behind other
    programs (`taskset -c 0 python train.py`), and a command that has `pyinstrument-gpu run` or
    `python -m pyinstrument_gpu run` in it already, as launchers of several processes need it.

    Attributes:
        words: the command as it was given.

    Raises:
        GateError: it can't be seen where the program is.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._place(list(words))

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    def recorded_into(self, path: str) -> list[str]:
        """The command that records. Without a report, which would follow the program's own last
        words."""
        return [*self._before, "-o", path, "--overwrite", "--no-report", *self._after]

    def _place(self, words: list[str]) -> None:
        if not words:
            raise GateError("the command is empty: give the program that trains")
        if (end := _end_of_own_run(words)) is not None:
            self._before, self._after = words[:end], words[end:]
            return
        run = ["-m", "pyinstrument_gpu", "run"]
        if words[0] == "-m" or words[0].endswith((".py", ".pyz")):
            self._before, self._after = [sys.executable, *run], words
        else:
            begin = self._begin_of_program(words)
            self._before, self._after = [*words[:begin], *run], words[begin:]
        if self._after[0] == "-m" and self._after[1:2] and self._after[1] in _LAUNCHER_MODULES:
            raise self._error_of_launcher()

    def _begin_of_program(self, words: list[str]) -> int:
        """The index of a script or of `-m`, behind the options of the interpreter."""
        names = [os.path.basename(word) for word in words]
        if names[0] in _LAUNCHERS:
            raise self._error_of_launcher()
        found = [i for i, name in enumerate(names) if _INTERPRETER.fullmatch(name)]
        if not found:
            raise GateError(
                f"can't see which program of {self.text!r} is to be recorded: write "
                "`pyinstrument-gpu run` in front of it, or give `python PROGRAM`"
            )
        index = found[0] + 1
        while index < len(words) and words[index].startswith("-") and len(words[index]) > 1:
            word = words[index]
            if word.startswith("--"):
                index += 1 if "=" in word else 2
                continue
            flags = re.match(r"-([^WXcm]*)([WXcm]?)(.*)", word, re.S)
            assert flags is not None
            plain, with_value, value = flags.groups()
            if with_value == "c":
                raise GateError(f"can't record the code in {self.text!r}: put it into a file")
            if with_value == "m":
                words[index : index + 1] = [
                    *([f"-{plain}"] if plain else []),
                    *(["-m", value] if value else ["-m"]),
                ]
                return index + bool(plain)
            index += 1 if value or not with_value else 2
        if index >= len(words) or words[index] == "-":
            raise GateError(f"there is no program in {self.text!r}: give `python PROGRAM`")
        return index

    def _error_of_launcher(self) -> GateError:
        return GateError(
            f"can't see where the program begins in {self.text!r}: write `-m pyinstrument_gpu run` "
            "in front of it, as in `torchrun --nproc-per-node=2 -m pyinstrument_gpu run train.py`"
        )


def _end_of_own_run(words: Sequence[str]) -> int | None:
    for i, word in enumerate(words):
        if tuple(words[i : i + 3]) == ("-m", "pyinstrument_gpu", "run"):
            return i + 3
        if os.path.basename(word) == "pyinstrument-gpu" and words[i + 1 : i + 2] == ["run"]:
            return i + 2
    return None
