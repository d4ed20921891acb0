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

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from pyinstrument_gpu.aspects.operations.profile_steps import ProfiledRecording, window_options
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.recording import Recording, when_begun

SUFFIX = ".control"
_MOST_BYTES = 4096
_MOST_STEPS = 1_000
_IN_THE_WAY = ". No request is followed until it is removed or replaced"


def install() -> None:
    """Have every recording into a file follow requests. Once, at import."""
    when_begun(_follow_requests)


def control_path(run_file: Path) -> Path:
    return run_file.with_name(run_file.name + SUFFIX)


def request_profile(run_file: Path, steps: int) -> None:
    """Ask the process that records into a file to profile its next steps.

    Whether it does is in its run, once it has: it takes requests of its own user only.

    Raises:
        PermissionError: the file belongs to another user, or nothing may be written beside it.
        OSError: nothing can be written beside it.
    """
    owner = os.stat(run_file).st_uid
    if owner != os.geteuid():
        raise PermissionError(
            errno.EPERM, f"the run belongs to user {owner}, and only they can ask", str(run_file)
        )
    path = control_path(run_file)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        os.write(descriptor, json.dumps({"profile_steps": steps}).encode())
        os.close(descriptor)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _follow_requests(recording: Recording) -> None:
    if recording.path is not None:
        recording._look_for_request = ControlFile(recording).look


class ControlFile:
    """Takes the requests to one recording."""

    def __init__(self, recording: Recording) -> None:
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
