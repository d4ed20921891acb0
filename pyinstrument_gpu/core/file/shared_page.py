# SPDX-License-Identifier: Apache-2.0
"""The last steps of a process that was killed, which its recording has left in /dev/shm.

A run file is up to 0.1 s behind its process. So a recording also notes each step in a page of
shared memory (csrc/log/shared_page.h), which outlives the process, but neither its container nor a
reboot. The next recording of the same user on that machine puts it beside the run file.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

FOLDER = "/dev/shm"
SUFFIX = ".last_steps"
STEP_BYTES = 40
MOST_STEPS = 400
_PREFIX = "pyinstrument-gpu-"
_HEADER = struct.Struct("<QQ4096s")  # the run's id, how many steps there were, the run file
_MOST_PAGES = 256


def last_steps(path: Path) -> bytes | None:
    """The newest steps of the killed process whose run file this is, as STEPS has them, the oldest
    first; None where they are not known here, or it lives."""
    with suppress(OSError), open(path, "rb") as run:
        run_id = run.read(32)[24:]  # in the header, which is there before any document
        page = f"{FOLDER}/{_PREFIX}{int.from_bytes(run_id, 'little'):016x}"
        for place in (f"{path}{SUFFIX}", page):
            with suppress(OSError), open(place, "rb") as file:
                if place == page:  # which its process holds while it lives
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                data = file.read()
                if data[:8] == run_id and len(data) == _HEADER.size + MOST_STEPS * STEP_BYTES:
                    _, count, _ = _HEADER.unpack_from(data)
                    steps, at = data[_HEADER.size :], count % MOST_STEPS * STEP_BYTES
                    return (steps[at:] if count >= MOST_STEPS else b"") + steps[:at]
    return None


def keep_last_steps() -> None:
    """Put pages of dead processes beside their run files, as far as these are still there."""
    with suppress(OSError):
        pages = [entry for entry in os.scandir(FOLDER) if entry.name.startswith(_PREFIX)]
        for page in pages[:_MOST_PAGES]:
            if page.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            with suppress(OSError), open(page.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                data = file.read()
                path = data[_HEADER.size - 4096 : _HEADER.size].rstrip(b"\0")
                with suppress(OSError):
                    if os.path.exists(path):
                        Path(os.fsdecode(path) + SUFFIX).write_bytes(data)
                os.unlink(page.path)
