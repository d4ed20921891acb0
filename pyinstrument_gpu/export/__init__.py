# SPDX-License-Identifier: Apache-2.0
"""The one door out of a run: a table of formats over one small interface.

A format is a function that writes runs. To add one, write its module and add a row to `FORMATS`;
other packages add theirs by an entry point (docs/architecture.md, Plug-ins).
"""

from __future__ import annotations

import gzip
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from pyinstrument_gpu import plugins
from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.file.run_files import check_replaceable
from pyinstrument_gpu.core.job_membership import not_one_job, same_run_twice
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError, PyinstrumentGpuError
from pyinstrument_gpu.export import collapsed, csv, nvtxt, parquet, perfetto, tables, tensorboard

_GZIP = ".gz"
_GZIP_LEVEL = 3  # a trace is a tenth as long or less, in half the time that level 6 takes

FOLDER = "/"
"""In place of a suffix: the path ends with a slash, or is a folder whose name has no suffix."""


@dataclass(frozen=True)
class Exporter:
    """A format of exports.

    Attributes:
        write: `write(runs, sink, advance=advance, **options)` writes the runs, usually the ranks of
            one job; there is at least one. It calls `advance(n)` whenever it is done with n more
            spans. Where the format has times, it raises `ExportError` if there are several runs
            and one does not know when it began. Memory beside the runs does not grow with
            their spans.
        suffixes: the file suffixes, lower case, that choose this format, or `FOLDER`, each with
            what is written then. A format without any is chosen by its name only. With ".gz" the
            file is compressed, whatever chose the format.
        options: what `write` takes beyond `advance`, each with its help, and with what its value is
            called where it is more than a flag.
        output: what `sink` is. "text", "binary": a binary stream that becomes one file. "path": the
            path itself, of a folder or of a file that cannot be written as a stream.
        write_metadata: for a format that has no place for it, `write_metadata(runs, path)` writes
            beside the file what runs these are.
        by_name: of a format without suffixes what is written.
    """

    write: Callable[..., None]
    suffixes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    output: Literal["text", "binary", "path"] = "text"
    write_metadata: Callable[[Sequence[Run], Path], None] | None = None
    by_name: str = ""


FORMATS: Mapping[str, Exporter] = {
    "csv": Exporter(
        csv.write,
        {".csv": "a table of all spans", ".csv.gz": "the same, compressed"},
        {**tables.OPTIONS, **csv.OPTIONS},
        write_metadata=csv.write_metadata,
    ),
    "perfetto": Exporter(
        perfetto.write,
        {".json": "a trace for ui.perfetto.dev", ".json.gz": "the same, compressed"},
    ),
    "parquet": Exporter(
        parquet.write,
        {".parquet": "a table of all spans, as Parquet"},
        tables.OPTIONS,
        output="binary",
    ),
    "parquet-folder": Exporter(
        parquet.write_folder,
        {FOLDER: "a folder with a Parquet file for each rank"},
        tables.OPTIONS,
        output="path",
    ),
    "nvtxt": Exporter(nvtxt.write, {".nvtxt": "text that Nsight Systems can import"}),
    "collapsed": Exporter(
        collapsed.write, {".collapsed": "stacks of Python, for flame graphs"}, output="binary"
    ),
    "tensorboard": Exporter(
        tensorboard.write, output="path", by_name="an event file into the log directory"
    ),
}
"""Those of this package. The first one is that of standard output."""


def formats() -> Mapping[str, Exporter]:
    """Return all formats by name, those of plug-ins behind `FORMATS`."""
    added = plugins.load_all("exporters", _is_exporter)
    guarded = {name: replace(one, write=partial(_guarded, name, one.write)) for name, one in added}
    return {**FORMATS, **guarded, **FORMATS}


def _is_exporter(found: object) -> bool:
    return isinstance(found, Exporter)


def _guarded(name: str, write: Callable[..., None], *args: Any, **options: Any) -> None:
    """Write by a plug-in, and name it in the error if it fails."""
    try:
        write(*args, **options)
    except (PyinstrumentGpuError, OSError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ExportError(f"the plug-in {name!r} can't write these runs: {what}") from error


def export(
    runs: Sequence[Run],
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    advance: Callable[[int], None] = lambda spans: None,
    **options: Any,
) -> None:
    """Write runs to a file.

    The file is written beside its final place and moved there when it is whole, so an error leaves
    an existing file as it was. A path that is a pipe or a device is written directly. A run file is
    never replaced.

    Of a run that lacks spans, or was cut short, what is there is written, without a warning:
    `Run.complete`, `dropped` and `notes` say what is missing, as do the files of formats that have
    a place for it (Perfetto, Parquet, and the metadata beside CSV).

    Args:
        runs: what to write: one run, or the ranks of one job.
        path: the file; one that exists is replaced. For some formats a folder.
        format: a key of `formats()`; None chooses by the suffix of `path`.
        advance: called with a number of spans whenever so many more are done.
        **options: those of the format (`Exporter.options`).

    Raises:
        ExportError: the format is not known or cannot hold these runs; one run is given twice, or
            some are known not to be of one job; the file cannot be written or is a run file.
        MissingDependencyError: the format needs a package that is not installed.
        TypeError: the format has no such option.
    """
    name = format_for(path, format)
    exporter = formats()[name]
    for option in options:
        if option not in exporter.options:
            known = ", ".join(exporter.options) or "none"
            raise TypeError(f"{name} has no option {option!r}; it has {known}")
    check_runs(runs)
    try:
        check_replaceable(path)
        if exporter.output == "path":
            exporter.write(runs, Path(path), advance=advance, **options)
            return
        with atomic_write(path) as sink, _compressed(sink, path, exporter) as text:
            exporter.write(runs, text, advance=advance, **options)
        if exporter.write_metadata is not None and os.path.isfile(path):  # not of a pipe
            exporter.write_metadata(runs, Path(path))
    except OSError as error:
        raise ExportError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def formats_with(option: str) -> list[str]:
    """The formats that have an option."""
    return [name for name, exporter in formats().items() if option in exporter.options]


def check_runs(runs: Sequence[Run], names: Sequence[str] | None = None) -> None:
    """Refuse runs that can't be written together.

    Args:
        names: what errors call them; "run 1" and so on by default.

    Raises:
        ExportError: there are none, one is there twice, or some are not ranks of the same job.
    """
    if not runs:
        raise ExportError("there is no run to export")
    if names is None:
        names = [f"run {position}" for position in range(1, len(runs) + 1)]
    wrong = same_run_twice(runs, names)
    if wrong is not None:
        raise ExportError(wrong)
    wrong = not_one_job(runs, names)
    if wrong is not None:
        raise ExportError(f"{wrong}: export the runs of each job on their own")


def format_for(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The key of `formats()` that is asked for, by name or by the suffix of a path.

    Raises:
        ExportError: there is no such format.
    """
    if format is not None:
        if format not in formats():
            raise ExportError(f"unknown format {format!r}; known: {', '.join(formats())}")
        return format
    given = os.fspath(path)
    name = Path(path).name.lower()
    suffix = Path(path).suffix
    if given.endswith(os.sep) or (not suffix and os.path.isdir(path)):
        suffix = name = FOLDER
    for key, exporter in formats().items():
        if any(name.endswith(each) for each in exporter.suffixes):
            return key
    known = ", ".join(
        f"{'/'.join(exporter.suffixes)} ({key})"
        for key, exporter in formats().items()
        if exporter.suffixes
    )
    by_name = {key: exporter.by_name for key, exporter in formats().items() if exporter.by_name}
    hint = "Use one of these, or name the format"
    if not suffix:
        written = "; for ".join(by_name.values())
        hint = f"For a folder, write {given + os.sep!r}; for {written}, name the format"
    if suffix == ".nsys-rep":
        text = shlex.quote(given.removesuffix(suffix) + ".nvtxt")
        hint = (
            "Write NVTXT, and have Nsight Systems make the report of it: "
            f"ImportNvtxt --cmd create -n {text} -o {shlex.quote(given)}"
        )
    raise ExportError(
        f"no format has the suffix {suffix!r} of {given!r}; known: {known}, and by name only: "
        f"{', '.join(by_name)}. {hint}"
    )


@contextmanager
def _compressed(
    sink: BinaryIO, path: str | os.PathLike[str], exporter: Exporter
) -> Iterator[BinaryIO]:
    """The sink, or one that compresses into it."""
    suffixes = [suffix for suffix in exporter.suffixes if suffix.endswith(_GZIP)]
    if not suffixes or Path(path).suffix.lower() != _GZIP:
        yield sink
        return
    # Without a name and a time, so that the same runs give the same file.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0) as text:
        yield cast(BinaryIO, text)
