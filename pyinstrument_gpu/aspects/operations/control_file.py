# SPDX-License-Identifier: Apache-2.0
"""Requests to a recording from outside its process: the control file beside its run file.

For `train.gpurun` it is `train.gpurun.control`, an object of JSON such as `{"profile_steps": 3}`.
The native thread of the recording looks once a second whether there is one, and only then is
anything done in Python. A request is taken once: the file is removed before it is read. It has to
be whole when it appears, so it is written elsewhere in the same folder and then renamed. What is
wrong with it becomes a note of the run.

Only a regular file of the user that the process runs as, and which nobody else may write, is read.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from pyinstrument_gpu.core.file.control_path import control_path

_MOST_BYTES = 4096
_MOST_STEPS = 1_000
_IN_THE_WAY = ". No request is followed until it is removed or replaced"


class ControlFile:
    """The control file of one recording."""

    def __init__(self, run_file: Path) -> None:
        self.path = control_path(run_file)
        # What is there and stays: it is found again.
        self._in_the_way: tuple[int, ...] | None = None

    def take(self) -> int | None:
        """How many steps a request asks to profile; None if there is no request.

        Raises:
            ValueError: there is one that can't be followed.
        """
        path = os.fsencode(self.path)
        try:
            status = os.lstat(path)
        except OSError:
            return None
        # The number of a file that was removed may be that of the next one.
        found = status.st_ino, status.st_mode, status.st_uid
        if found == self._in_the_way:
            return None
        try:
            return _steps_of(_take(path, status))
        except (OSError, ValueError) as error:
            stays = os.path.lexists(path)
            self._in_the_way = found if stays else None
            raise ValueError(f"{error}{_IN_THE_WAY if stays else ''}") from None


def _take(path: bytes, status: os.stat_result) -> bytes:
    """Remove the file and return what is in it.

    Raises:
        ValueError: it is none of the user's own.
        OSError: it can't be removed or read.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    # Not the kind of file that opening could wait for; who put another there meanwhile is found.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError("it is no regular file of the user that the program runs as")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others than its owner may write it")
        os.unlink(path)
        content = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return content


def _steps_of(request: bytes) -> int:
    try:
        asked: Any = json.loads(request)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    steps = asked.get("profile_steps") if isinstance(asked, dict) else None
    if type(steps) is not int or not 1 <= steps <= _MOST_STEPS:
        raise ValueError(f'it should be {{"profile_steps": N}}, with N from 1 to {_MOST_STEPS:,}')
    return steps
