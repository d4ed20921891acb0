# SPDX-License-Identifier: Apache-2.0
"""The one door out of a run: a table of formats over one small interface.

A format is a function that writes runs to a binary stream. To add one, write its module and add a
row to `FORMATS`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export import csv
from pyinstrument_gpu.run import Run


@dataclass(frozen=True)
class Exporter:
    """One format.

    Attributes:
        suffixes: the file suffixes, lower case, that choose this format.
        write: `write(runs, sink, **options)` writes the runs, usually the ranks of one job, to a
            binary stream. It raises `ExportError` where the format cannot hold them.
    """

    suffixes: tuple[str, ...]
    write: Callable[..., None]


FORMATS: Mapping[str, Exporter] = {
    "csv": Exporter(suffixes=(".csv",), write=csv.write),
}


def export(
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    format: str | None = None,
    **options: Any,
) -> None:
    """Write runs to a file.

    The file is written beside its final place and moved there when it is whole, so an error leaves
    an existing file as it was. A path that is a pipe or a device is written directly.

    Args:
        runs: what to write; most formats hold one run or the ranks of one job.
        path: the file; one that exists is replaced.
        format: a key of `FORMATS`; None chooses by the suffix of `path`.
        **options: passed to the format.

    Raises:
        ExportError: the format is not known, cannot hold these runs, or the file cannot be written.
        TypeError: the format has no such option.
    """
    exporter = FORMATS[format_for(path, format)]
    try:
        with _replacing(path) as sink:
            exporter.write(runs, sink, **options)
    except OSError as error:
        raise ExportError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def format_for(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The key of `FORMATS` that is asked for, by name or by the suffix of a path.

    Raises:
        ExportError: there is no such format.
    """
    if format is not None:
        if format not in FORMATS:
            raise ExportError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
        return format
    suffix = Path(path).suffix
    for name, exporter in FORMATS.items():
        if suffix.lower() in exporter.suffixes:
            return name
    known = ", ".join(
        f"{'/'.join(exporter.suffixes)} ({name})" for name, exporter in FORMATS.items()
    )
    raise ExportError(
        f"no format has the suffix {suffix!r} of {os.fspath(path)!r}; known: {known}. "
        "Use one of these, or name the format"
    )


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    if target.exists() and not target.is_file():
        with target.open("wb") as sink:
            yield sink
        return
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as sink:
            yield sink
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
