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
from typing import Any

from pyinstrument_gpu.aspects.operations.profile_steps import ProfiledRecording, window_options
from pyinstrument_gpu.core.file.control_path import control_path
from pyinstrument_gpu.core.process import ActiveRecording, when_begun
from pyinstrument_gpu.native import native

_MOST_BYTES = 4096
_MOST_STEPS = 1_000
_IN_THE_WAY = ". No request is followed until it is removed or replaced"


def install() -> None:
    """Have every recording into a file follow requests. Once, at import."""
    when_begun(_follow_requests)


def _follow_requests(recording: ActiveRecording) -> None:
    if recording.path is not None:
        recording.watchers["control file"] = ControlFile(recording)


class ControlFile:
    """Takes the requests to one recording."""

    def __init__(self, recording: ActiveRecording) -> None:
        assert recording.path is not None
        self._recording = recording
        self._path = os.fsencode(control_path(recording.path))
        # What is there and stays: it is found again.
        self._in_the_way: tuple[int, ...] | None = None

    def look(self) -> None:
        """Do what is asked for, if there is a request."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return
        # The number of a file that was removed may be that of the next one.
        found = status.st_ino, status.st_mode, status.st_uid
        if found == self._in_the_way:
            return
        try:
            request = _take(self._path, status)
            steps = _steps_of(request)
        except (OSError, ValueError) as error:
            stays = os.path.lexists(self._path)
            self._in_the_way = found if stays else None
            self._note(f"{error}{_IN_THE_WAY if stays else ''}")
            return
        if native.owner() is not self._recording:
            return
        if not ProfiledRecording.of(self._recording).ask(window_options(steps)):
            self._note("other steps are still to be profiled")

    def _note(self, reason: str) -> None:
        name = os.path.basename(os.fsdecode(self._path))
        ProfiledRecording.of(self._recording).document.note(
            f"a request in {name} was not followed: {reason}"
        )


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
