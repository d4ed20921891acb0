# SPDX-License-Identifier: Apache-2.0
"""Requests to a process that records into a file: the control file beside it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

SUFFIX = ".control"


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
