# SPDX-License-Identifier: Apache-2.0
"""The native module, or what stands for it where there is none.

Only this file imports `_C`. On platforms without it (and in subinterpreters, which it refuses)
phases and steps do nothing, starting a recording says why, and runs can be loaded, analysed and
exported all the same.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from pyinstrument_gpu.errors import RecordingError

_VARIABLE = "PYINSTRUMENT_GPU"
OFF = ("0", "off", "false", "no")
_ON = ("", "1", "on", "true", "yes")


def _is_disabled() -> bool:
    value = os.environ.get(_VARIABLE, "")
    if value.lower() not in (*OFF, *_ON):
        warnings.warn(
            f"{_VARIABLE}={value!r} in the environment is ignored: to turn pyinstrument_gpu off, "
            f"set it to one of {', '.join(OFF)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return value.lower() in OFF


DISABLED = _is_disabled()
"""Whether the environment asks for no recording and no NVTX ranges at all."""


try:
    from pyinstrument_gpu.native import _C

    IMPORT_ERROR: ImportError | None = None
except ImportError as error:
    if not TYPE_CHECKING:
        from pyinstrument_gpu.native import inert as _C
    IMPORT_ERROR = error

native = _C


def require_native() -> None:
    """Raise RecordingError, with the reason, where there is no native module."""
    if IMPORT_ERROR is not None:
        raise RecordingError(
            f"recording needs the native module, which can't be imported: {IMPORT_ERROR}. "
            "`pip install pyinstrument-gpu` builds it on Linux; it serves the main interpreter only"
        ) from IMPORT_ERROR
