# SPDX-License-Identifier: Apache-2.0
"""A cache of what later runs of this user need not compile or measure again, a file per key.

A cache that cannot be used is none, without a word: its directory is another user's or cannot be
written, the disk is full, a file is damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_directory() -> Path:
    """Return the cache's directory: `PYINSTRUMENT_GPU_CACHE_DIR`, or one in the user's own cache.

    Raises:
        RuntimeError: the user has no home directory.
    """
    if named := os.environ.get("PYINSTRUMENT_GPU_CACHE_DIR"):
        return Path(named)
    general = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return general / "pyinstrument_gpu"


def load(key: str) -> bytes | None:
    """The data that was stored under a key; None where there is none that can be trusted."""
    try:
        path = cache_directory() / key
        if not _is_own(path.parent.stat()) or not _is_own(path.lstat()):
            return None
        content = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return data if digest == _digest(key, data) else None


def store(key: str, data: bytes) -> None:
    """Keep data under a key, if that can be done."""
    with contextlib.suppress(OSError, RuntimeError):
        directory = cache_directory()
        _make_private(directory)
        if not _is_own(directory.stat()):
            return
        # With mode 0600. Readers see the whole file or none.
        file, temporary = tempfile.mkstemp(dir=directory, prefix=f"{key}.")
        try:
            with open(file, "wb") as stream:
                stream.write(_digest(key, data) + data)
            os.replace(temporary, directory / key)
        except OSError:
            os.unlink(temporary)


def _make_private(directory: Path) -> None:
    """Make a directory and its parents, for this user alone."""
    for each in (*reversed(directory.parents), directory):
        if not each.exists():
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)


def _is_own(status: os.stat_result) -> bool:
    """Return whether a file or directory is this user's, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(key: str, data: bytes) -> bytes:
    """Return a digest that reveals a damaged file, and one under another's key."""
    return hashlib.sha256(key.encode() + b"\0" + data).digest()
