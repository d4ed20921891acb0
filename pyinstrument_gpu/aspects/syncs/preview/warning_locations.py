# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the program, as they would without our wrapper in between.

A function of torch that warns at its caller, in Python or in C++, finds a wrapper there.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from pyinstrument_gpu.aspects.syncs.preview.patches import Patches
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER


def install(patches: Patches) -> None:
    """Patch what the interpreter calls to show a warning."""
    patches.wrap(warnings, "_showwarnmsg", _show)


def _show(original: Callable[[Any], None], message: Any) -> None:
    if str(message.filename).startswith(OWN_FOLDER):
        # From the wrapper of this function on.
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        while frame is not None and _is_ours(frame):
            frame = frame.f_back
        if frame is not None:
            message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
    original(message)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_FOLDER)
