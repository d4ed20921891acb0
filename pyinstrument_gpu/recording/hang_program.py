# SPDX-License-Identifier: Apache-2.0
"""The program that the watchdog starts when nothing happens: `why` in a process of its own
(`cli/hang.py`), and the user's command that it calls.

The native module starts it, without the GIL, which whoever hangs may hold for ever. So command and
environment are made as the recording begins.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyinstrument_gpu.native import native

# Not -m, which looks for modules in the working directory first.
_PROGRAM = "import sys; del sys.path[0]; from pyinstrument_gpu.cli.hang import main; main()"


def install(file: Path | None, call: str | None) -> None:
    """Have the watchdog of the recording into a file start it; without a file, nothing.

    Args:
        call: a command or a URL of the user's.
    """
    if file is None or not sys.executable:
        native.set_stall_program([], [])
        return
    command = [sys.executable, "-c", _PROGRAM, str(file), *([] if call is None else [call])]
    environment = {
        # What is not ours to record.
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYINSTRUMENT_GPU")
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, sys.path))
    pairs = (f"{name}={value}" for name, value in environment.items())
    native.set_stall_program(list(map(os.fsencode, command)), list(map(os.fsencode, pairs)))


def remove() -> None:
    """Have nothing started any more."""
    install(None, None)


def is_url(call: str) -> bool:
    """Return whether this is a URL and no command."""
    return call.startswith(("http://", "https://"))


def check_call(call: str) -> None:
    """Raise ValueError, with the reason, where it is neither a URL nor a command."""
    import shlex  # only for this

    if not is_url(call) and not shlex.split(call):
        raise ValueError("it is empty")
