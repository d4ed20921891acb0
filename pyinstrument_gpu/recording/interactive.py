# SPDX-License-Identifier: Apache-2.0
"""Recordings in notebooks, where a cell is run again and again.

A cell that records into a file may take the place of what an earlier execution has recorded there.
A run that lies there since before the kernel was started gets a numbered name, so that "run all"
works after a restart and nothing is lost. What the same execution has written stays in the way: a
loop that gives all its runs one name is a mistake.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.errors import RunFileError
from pyinstrument_gpu.patching.problems import print_error

_WRITTEN_S = 3.0
"""A recording is written to more often, whatever its program does."""
_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")


class _Written(NamedTuple):
    process: int
    execution: int
    run_id: str


_written: dict[Path, _Written] = {}


def note_file(path: Path, run_id: str) -> None:
    """Note that this process records a run into a file."""
    now = _execution()
    if now is not None:
        _written[path] = _Written(os.getpid(), now, run_id)


def is_of_earlier_execution(path: Path) -> bool:
    """Return whether an earlier execution of this very process recorded the run in a file."""
    found, now = _written.get(path), _execution()
    if found is None or now in (None, found.execution) or found.process != os.getpid():
        return False
    from pyinstrument_gpu.core.file.framing import FILE_HEADER_BYTES, read_file_header

    try:
        if not is_run_file(path):
            return False
        with open(path, "rb") as file:
            run_id = read_file_header(memoryview(file.read(FILE_HEADER_BYTES)))
    except (OSError, RunFileError):
        return False
    return run_id == int(found.run_id, 16)


def set_aside(path: Path) -> None:
    """Give a run file that lies there since before this kernel was started the next free name, and
    say so: `train.gpurun` becomes `train.1.gpurun`. It stays where somebody is recording into it,
    or it can't be renamed."""
    if notebook() is None or path in _written or path.is_symlink():
        return
    with contextlib.suppress(OSError):  # then it is in the way, and that is said
        if not is_run_file(path) or time.time() - path.stat().st_mtime < _WRITTEN_S:
            return
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(1))
        free = next(name for name in names if not os.path.lexists(name))
        path.rename(free)
        print_error(f"pyinstrument_gpu: {path} was recorded before this kernel: it is {free} now")


def _execution() -> int | None:
    """The number of the execution that goes on, in IPython and Jupyter; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return None if shell is None else int(shell.execution_count)


def notebook() -> list[str] | None:
    """Return what stands for the program and its arguments in a notebook, where those of the
    process are the kernel's; None elsewhere."""
    program = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    if program not in _KERNELS:
        return None
    return [os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"]
