# SPDX-License-Identifier: Apache-2.0
"""The last steps of a process that was killed, which its recording has left in /dev/shm.

A run file is up to 0.1 s behind its process. So a recording also notes each step in a page of
shared memory (csrc/log/shared_page.h), which outlives the process, but neither its container nor a
reboot. The next recording of the same user on that machine puts it beside the run file.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pyinstrument_gpu.atomic_file import atomic_write

FOLDER = "/dev/shm"
SUFFIX = ".last_steps"
STEP_BYTES = 40
_SLOTS = 400
MOST_STEPS = _SLOTS - 1
"""The process may have been killed while it wrote over the oldest one."""
_PREFIX = "pyinstrument-gpu-"
_HEADER = struct.Struct("<QQ4096s")  # the run's id, how many steps there were, the run file
_PAGE_BYTES = _HEADER.size + _SLOTS * STEP_BYTES
_MOST_PAGES = 256
_STARTING_S = 60.0
"""A page is whole once its recording has begun. One that isn't by then was left by accident."""


def last_steps(path: Path) -> bytes | None:
    """The newest steps of the killed process whose run file this is, as STEPS has them, the oldest
    first; None where they are not known here, or it lives."""
    with suppress(OSError), open(path, "rb") as run:
        run_id = run.read(32)[24:]  # in the header, which is there before any document
        owner = os.fstat(run.fileno()).st_uid
        page = f"{FOLDER}/{_PREFIX}{int.from_bytes(run_id, 'little'):016x}"
        for place in (f"{path}{SUFFIX}", page):
            with suppress(OSError), open(place, "rb", opener=_opened) as file:
                if place == page:  # which its process holds while it lives
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                data = _read(file, owner)
                if data is not None and data[:8] == run_id:
                    _, count, _ = _HEADER.unpack_from(data)
                    steps, at = data[_HEADER.size :], count % _SLOTS * STEP_BYTES
                    return (steps[at + STEP_BYTES :] if count >= _SLOTS else b"") + steps[:at]
    return None


def keep_last_steps() -> None:
    """Move the pages of dead processes next to their run files, where those still exist. One that
    can't be moved stays."""
    with suppress(OSError):
        own = os.geteuid()
        pages = [entry for entry in os.scandir(FOLDER) if entry.name.startswith(_PREFIX)]
        pages = [page for page in pages if page.stat(follow_symlinks=False).st_uid == own]
        for page in pages[:_MOST_PAGES]:
            with suppress(OSError), open(page.path, "rb", opener=_opened) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                data = _read(file, own)
                if data is None:
                    if time.time() - page.stat().st_mtime > _STARTING_S:
                        os.unlink(page.path)
                    continue
                path = os.fsdecode(data[_HEADER.size - 4096 : _HEADER.size].rstrip(b"\0"))
                if os.path.exists(path):
                    with atomic_write(f"{path}{SUFFIX}", follow_links=False) as beside:
                        beside.write(data)
                os.unlink(page.path)


def _opened(path: str, flags: int) -> int:
    """Open a file safely: anyone can put anything into FOLDER."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read(file: BinaryIO, owner: int) -> bytes | None:
    """A whole page of that user; None where it is none."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
        return None
    data = file.read(_PAGE_BYTES + 1)
    return data if len(data) == _PAGE_BYTES else None
