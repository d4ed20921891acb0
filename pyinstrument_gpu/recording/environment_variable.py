# SPDX-License-Identifier: Apache-2.0
"""`PYINSTRUMENT_GPU_RECORD=path`: a recording that begins when the package is imported, and ends
with the program.

It is of the process that first imports the package, and not of the processes that this one starts:
the variable is taken out of its environment. Neither do the commands of this package record
themselves, nor workers of `multiprocessing`. Whatever goes wrong is one warning.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

from pyinstrument_gpu.native import DISABLED
from pyinstrument_gpu.patching.problems import warn_of
from pyinstrument_gpu.recording.options import RecordingOptions, with_settings
from pyinstrument_gpu.recording.recording import Recording

VARIABLE = "PYINSTRUMENT_GPU_RECORD"
_PACKAGE = "pyinstrument_gpu"
_COMMAND = "pyinstrument-gpu"


def record_if_asked() -> None:
    """Begin a recording if the environment asks for one. Never raises. Once, at import."""
    if not os.environ.get(VARIABLE) or DISABLED or _is_command() or _is_worker():
        return
    text = os.environ.pop(VARIABLE)
    try:
        path = Path(text.replace("{pid}", str(os.getpid())))
        options = with_settings(RecordingOptions, (path,), {}) or RecordingOptions(path)
        recording = Recording(options)
        recording._give_way = lambda: _give_way(recording)
        recording._start()
    except Exception as error:
        reason = str(error)
        if isinstance(error.__cause__, FileExistsError):  # what it says is for calls of `record`
            reason = f"{text} already exists: choose another path, perhaps one with {{pid}}"
        warn_of(f"{VARIABLE}: nothing is recorded: {reason}")


def _give_way(recording: Recording) -> None:
    recording._finish_if_mine()
    warn_of(
        f"{VARIABLE}: the program has started a recording of its own, so the one into "
        f"{recording.path} ended there"
    )


def _is_command() -> bool:
    """Return whether this process is `pyinstrument-gpu`, or `python -m pyinstrument_gpu`."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name != "-m":  # which it is while the module is looked for
        return os.path.basename(name) == _COMMAND
    arguments = sys.orig_argv
    named = [b for a, b in itertools.pairwise(arguments) if a == "-m"]
    named += [argument[2:] for argument in arguments if argument.startswith("-m")]
    return any(one.partition(".")[0] == _PACKAGE for one in named)


def _is_worker() -> bool:
    """Return whether `multiprocessing` has started this process. It says so by itself only later
    than a spawned one imports the program."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return True
    return any(
        argument == "--multiprocessing-fork" or argument.startswith("from multiprocessing.")
        for argument in sys.orig_argv
    )
