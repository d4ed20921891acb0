# SPDX-License-Identifier: Apache-2.0
"""A file that appears whole or not at all, in the place of no other that is still needed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.errors import ExportError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file beside its final place and move it there when it is whole.

    So an error leaves an existing file as it was. A path that is a pipe or a device is written
    directly.
    """
    # Asked of the path itself: what /dev/stdout links to has no path where it is a pipe.
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as sink:
            yield sink
        return
    target = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as sink:
            yield sink
        os.replace(part, target)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(part):
            error.filename, error.filename2 = os.fspath(path), None  # the name that was asked for
        part.unlink(missing_ok=True)
        raise


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to replace what cannot be made again: a run file, which may be the one that is being
    exported.

    Raises:
        ExportError: the path is one.
    """
    if is_run_file(path):
        raise ExportError(f"{os.fspath(path)!r} is a run file and would be replaced")
