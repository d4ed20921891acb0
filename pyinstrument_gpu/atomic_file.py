# SPDX-License-Identifier: Apache-2.0
"""A file that appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, follow_links: bool = True) -> Iterator[BinaryIO]:
    """Write a file beside its final place and move it there when it is whole.

    So an error leaves an existing file as it was. A path that is a pipe or a device is written
    directly.

    Args:
        follow_links: whether what a link leads to is written. False for a name that the user has
            not given: anyone may have put something there, which is replaced.
    """
    # Asked of the path itself: what /dev/stdout links to has no path where it is a pipe.
    if follow_links and os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as sink:
            yield sink
        return
    target = Path(os.path.realpath(path) if follow_links else path)
    part = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as sink:
            yield sink
        os.replace(part, target)
    except BaseException as error:
        # The name that was asked for. That a disk is full has none.
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            error.filename, error.filename2 = os.fspath(path), None
        part.unlink(missing_ok=True)
        raise
