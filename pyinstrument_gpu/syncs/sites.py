# SPDX-License-Identifier: Apache-2.0
"""Which line of the program a call comes from."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType

import torch

from pyinstrument_gpu.model.sync_kind import SyncKind
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LOADER = os.path.join(_TORCH, "utils", "data") + os.sep
_OPTIMIZERS = os.path.join(_TORCH, "optim") + os.sep
_LIBRARIES = (
    OWN_FOLDER,
    _TORCH,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")),
    "<frozen",
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_sites: dict[tuple[str, int, str, int], int | None] = {}
_names_cpu: dict[tuple[CodeType, int], bool] = {}
os.register_at_fork(after_in_child=_sites.clear)


def caller(frame: FrameType) -> FrameType:
    """The innermost frame that is not ours."""
    return next(
        (f for f in _callers(frame) if not f.f_code.co_filename.startswith(OWN_FOLDER)), frame
    )


def program_frame(frame: FrameType) -> FrameType:
    """The innermost caller that is code of the program, and of no library; where there is none,
    the frame itself."""
    return next((f for f in _callers(frame) if _is_program(f.f_code.co_filename)), frame)


def site_of(frame: FrameType, kind: SyncKind, flags: int) -> int | None:
    """The site of a frame's current line; None when there are too many."""
    key = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, kind | flags)
    if key not in _sites:
        # Names of files may hold what is no Unicode.
        file = key[0].encode("utf-8", "replace").decode()
        _sites[key] = native.sync_site(file, key[1], key[2], key[3])
    return _sites[key]


def stays_on_host(frame: FrameType) -> bool:
    """Whether a tensor that is read here lies on the host in programs that use a device, too: in a
    data set or its loader, and the counters of optimizers."""
    if frame.f_code.co_filename.startswith(_OPTIMIZERS) and "lbfgs" not in frame.f_code.co_filename:
        return True
    return any(caller.f_code.co_filename.startswith(_LOADER) for caller in _callers(frame))


def names_cpu(frame: FrameType) -> bool:
    """Whether the call that a frame makes names the CPU where it stands in the source, as
    `x.to("cpu")` does. `x.to(device)` does not: with a device there it may be a copy to that. True
    where there is no source."""
    key = (frame.f_code, frame.f_lasti)
    if key not in _names_cpu:
        lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
        first, last = _lines_of_call(frame)
        text = "".join(lines[first - 1 : last])
        _names_cpu[key] = not text or "cpu" in text.lower()
    return _names_cpu[key]


def _lines_of_call(frame: FrameType) -> tuple[int, int]:
    line = frame.f_lineno
    if sys.version_info < (3, 11):
        return line, line
    instruction = frame.f_lasti // 2
    first, last, *_ = next(islice(frame.f_code.co_positions(), instruction, None))
    return (first or line, last or line)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _is_program(file: str) -> bool:
    # A virtual environment may lie inside the standard library's folder or beside the program.
    return not file.startswith(_LIBRARIES) and not any(part in file for part in _PACKAGES)
