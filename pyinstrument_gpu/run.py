# SPDX-License-Identifier: Apache-2.0
"""The run that users hold: its data, and what they ask of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.format import reader
from pyinstrument_gpu.model.run_data import RunData

__all__ = ["Run"]


class Run(RunData):
    # Users ask `help` of this class; what it holds is written down where it is made.
    __doc__ = RunData.__doc__

    @classmethod
    def deferred(cls, read: Callable[[], Run]) -> Run:
        """The run that a function reads, which is called when something of the run is first asked
        for, and again if it raises."""
        run = cls.__new__(cls)
        vars(run)["_deferred"] = read, threading.RLock()
        return run

    if not TYPE_CHECKING:  # otherwise every attribute would be one

        def __getattr__(self, name: str) -> Any:
            """Only called for attributes that are not there."""
            deferred = vars(self).get("_deferred")
            if deferred is not None and not name.startswith("__"):
                read, lock = deferred
                with lock:
                    if "_deferred" in vars(self):
                        vars(self).update({**vars(read()), **vars(self)})
                        del self._deferred
                return getattr(self, name)
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles are made of: all that was recorded."""
        _ = self.names
        return vars(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run file.

        If the file was cut off or damaged, the run holds what is before the damage, and `notes` say
        what is missing.

        Raises:
            OSError: the file cannot be opened or read.
            RunFileDamagedError: it is not a run file, or nothing true can be read from it.
            RunFileVersionError: its format is newer than this version of the package can read.
        """
        return reader.load(path, cls)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Run:
        """Read the bytes of a run file; errors as in `load`."""
        return reader.decode(data, cls)

    def report(
        self, *, step: int | None = None, width: int | None = None, color: bool | None = None
    ) -> str:
        """The run as a table for the terminal.

        Args:
            step: the index of the only step to show; None for the whole run.
            width: number of columns; None for the width of the terminal.
            color: whether to use colours; None if the terminal supports them.

        Raises:
            KeyError: there is no such step.
        """
        from pyinstrument_gpu.report.terminal import report

        return report(self, step=step, width=width, color=color)

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> None:
        """Write the run in another format.

        Formats and suffixes are `csv` (.csv), `perfetto` (.json), `parquet` (.parquet; a folder,
        written `name/`, is `parquet-folder`), `nsys` (.nsys-rep), `nvtxt` (.nvtxt), `nsys-sqlite`
        (.sqlite) and, by name only, `tensorboard` (a log directory).
        `pyinstrument_gpu.export.export` writes several runs at once, the ranks of one job.

        Of a run that lacks spans, or was cut short, what is there is written, without a warning:
        `complete`, `dropped` and `notes` say what is missing, and so do Perfetto's files, Parquet's
        and the metadata beside CSV.

        Args:
            path: the file or folder to write. An existing file is replaced once the new one is
                complete, but a run file never is.
            format: name of the format; None to choose it by the suffix of `path`.
            options: options of the format: `summary`, `steps`, `metrics`, `syncs` or `modules=True`
                for CSV and Parquet, `neutralize_formulas=True` for CSV, `merge_into=report` for
                `nsys`.

        Raises:
            ExportError: there is no such format, it cannot hold this run, or the file cannot be
                written.
            MissingDependencyError: the format needs a package or program that is not installed.
            TypeError: the format has no such option.
        """
        from pyinstrument_gpu.export import export

        export([self], path, format, **options)
