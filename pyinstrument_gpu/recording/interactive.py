# SPDX-License-Identifier: Apache-2.0
"""Recordings in notebooks, where a cell is run again and again.

A cell that records into a file may take the place of what an earlier execution has recorded there.
Files of other processes stay, also of this notebook's kernel before it was restarted, and so do
those that the same execution has written: a loop that gives all its runs one name is a mistake.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.errors import RunFileError

_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")


class _Written(NamedTuple):
    process: int
    execution: int
    run_id: str


_written: dict[Path, _Written] = {}


def note_file(path: Path, run_id: str) -> None:
    """This process records a run into a file."""
    now = _execution()
    if now is not None:
        _written[path] = _Written(os.getpid(), now, run_id)


def is_of_earlier_execution(path: Path) -> bool:
    """Whether the run in a file was recorded by an earlier execution of this very process."""
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


def _execution() -> int | None:
    """The number of the execution that goes on, in IPython and Jupyter; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return None if shell is None else int(shell.execution_count)


def notebook() -> list[str] | None:
    """What stands for the program and its arguments in a notebook, where those of the process are
    the kernel's; None elsewhere."""
    program = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    if program not in _KERNELS:
        return None
    return [os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"]
