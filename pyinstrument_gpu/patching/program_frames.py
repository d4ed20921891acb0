# SPDX-License-Identifier: Apache-2.0
"""The frames of the program, told from those of libraries, of torch and of our own."""

from __future__ import annotations

import enum
import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

import torch

from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_DECORATORS = tuple(os.path.join("utils", name) for name in ("_contextlib.py", "_device.py"))
_LAUNCHER = os.path.join(OWN_FOLDER, "launch") + os.sep
_STANDARD_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, innermost first, as far as our launcher, which runs the
    program."""
    while frame is not None and not frame.f_code.co_filename.startswith(_LAUNCHER):
        yield frame
        frame = frame.f_back


def caller(frame: FrameType) -> FrameType:
    """The innermost frame that is not ours."""
    return next(
        (f for f in callers(frame) if not f.f_code.co_filename.startswith(OWN_FOLDER)), frame
    )


def is_of_program(frame: FrameType) -> bool:
    """Return whether a frame is code of the program."""
    return _origin_of(frame) is _Origin.PROGRAM or _is_of_main_package(frame)


def is_internal(frame: FrameType) -> bool:
    """Return whether a frame is of no interest to anybody: our code, generated code, or a module of
    torch that is the call itself."""
    return _origin_of(frame) is _Origin.INTERNAL


def cell_of(file: str) -> str | None:
    """Return a notebook's name for the cell whose code has this made-up file: "Cell In[2]". Only
    its process knows. None for files."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    try:
        label = ipython.get_ipython().compile.format_code_name(file)
        return None if label is None else " ".join(label)
    except Exception:  # no shell, or an IPython that is built otherwise
        return None


def frames_of_call(frame: FrameType) -> tuple[FrameType, FrameType | None]:
    """The innermost caller that is code of the program; and the innermost of all, if that is a
    library's.

    Where a library is run as the program, by `-m` for example, its package is the program. Where
    no program is to be seen, on a thread of a library, the library's line stands alone.
    """
    innermost: FrameType | None = None
    packaged: FrameType | None = None
    for outer in callers(frame):
        origin = _origin_of(outer)
        if origin is _Origin.INTERNAL:
            continue
        innermost = innermost or outer
        if origin is _Origin.PROGRAM:
            return outer, None if outer is innermost else innermost
        if packaged is None and _is_of_main_package(outer):
            packaged = outer
    if packaged is not None:
        return packaged, None if packaged is innermost else innermost
    return innermost or caller(frame), None


def maker_of(frame: FrameType, made: object) -> tuple[FrameType, FrameType | None]:
    """As `frames_of_call`, of the call of a constructor: a class of the program's own calls that of
    its base, and what is meant is the line that makes the object."""
    program, library = frames_of_call(frame)
    while made is not None and _is_constructor_of(made, program) and program.f_back is not None:
        program, library = frames_of_call(program.f_back)
    return program, library


def _is_constructor_of(made: object, frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_varnames:
        return False
    return frame.f_locals.get(code.co_varnames[0]) is made


class _Origin(enum.Enum):
    PROGRAM = enum.auto()
    LIBRARY = enum.auto()
    INTERNAL = enum.auto()
    """Of no interest to anybody: our code, generated code, and the modules of torch that are the
    call itself, as `torch/_tensor.py` is."""


def _origin_of(frame: FrameType) -> _Origin:
    file = frame.f_code.co_filename
    if file.startswith("<") and frame.f_globals.get("__name__") != "__main__":
        return _Origin.INTERNAL
    return _origin_of_file(file)


@functools.cache
def _origin_of_file(file: str) -> _Origin:
    if file.startswith(OWN_FOLDER):
        return _Origin.INTERNAL
    if file.startswith(_TORCH):
        is_call = os.sep not in file[len(_TORCH) :] or file.endswith(_DECORATORS)
        return _Origin.INTERNAL if is_call else _Origin.LIBRARY
    # A virtual environment may lie inside the standard library's folder or beside the program.
    is_library = file.startswith(_STANDARD_LIBRARY) or any(part in file for part in _PACKAGES)
    return _Origin.LIBRARY if is_library else _Origin.PROGRAM


def _is_of_main_package(frame: FrameType) -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    package = "__main__" if spec is None else spec.name.partition(".")[0]
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("__main__", package)
