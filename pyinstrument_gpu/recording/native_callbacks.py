# SPDX-License-Identifier: Apache-2.0
"""Functions that the native module calls in Python, off the hot path."""

from __future__ import annotations

import opcode
import threading
import warnings
from collections.abc import Iterable
from types import CodeType
from typing import Literal

from pyinstrument_gpu.core.watcher import Watcher
from pyinstrument_gpu.errors import PhaseNameError
from pyinstrument_gpu.native import DISABLED, IMPORT_ERROR, native
from pyinstrument_gpu.recording import device_timing
from pyinstrument_gpu.recording.decorator import decorate
from pyinstrument_gpu.recording.recording import active


def install() -> None:
    """Give the native module its hooks. Once, at import."""
    if IMPORT_ERROR is not None:
        return
    native.set_hooks(
        decorate=decorate,
        thread_name=_thread_name,
        history_stopped=_history_stopped,
        device_warnings=device_timing.warn,
        device_probe=device_timing.attach_if_initialized,
        program_facts=_look_at_program,
        stall=_answer_stall,
        statement=_statement_at,
        phase_name_error=PhaseNameError,
    )
    if DISABLED:
        native.disable()


def _thread_name() -> str:
    # Not current_thread(): for a thread that Python did not start it makes an entry that stays.
    ident = threading.get_ident()
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), "")


def _statement_at(code: CodeType, offset: int) -> Literal["with", "for"] | None:
    """The statement that an instruction of a program is the begin of, which opens a block or draws
    the next item."""
    names = [opcode.opname[code.co_code[at]] for at in (offset, offset - 2)]
    # Up to Python 3.10, up to 3.13, and from 3.14 on.
    if names[0] in ("SETUP_WITH", "BEFORE_WITH") or names == ["CALL", "LOAD_SPECIAL"]:
        return "with"
    return "for" if names[0] == "FOR_ITER" else None


def _history_stopped() -> None:
    warnings.warn(
        f"the run file can no longer be written ({native.status()['error']}): the history of spans "
        "ends here. Statistics continue in memory and are in the Run that the recording returns",
        RuntimeWarning,
        stacklevel=2,
    )


def _answer_stall() -> None:
    for watcher in _watchers():
        watcher.stalled()


def _watchers() -> Iterable[Watcher]:
    recording = active()
    return () if recording is None else recording.watchers.values()


def _look_at_program() -> None:
    """Bring what the active recording knows of the program up to date."""
    recording = active()
    if recording is not None:
        facts = recording._tell_of_program()
        for watcher in recording.watchers.values():
            watcher.program_is(facts)
