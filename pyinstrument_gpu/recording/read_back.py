# SPDX-License-Identifier: Apache-2.0
"""The recorded run, read back from its file, or from memory where that fails."""

from __future__ import annotations

import os
import stat
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.framing import FILE_HEADER_BYTES, read_blocks_of, read_file_header
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileError

# Of runs that nobody has asked for yet: a program may keep any number of these, and needs
# descriptors for other things.
_MOST_OPEN = 16
_closers: deque[Callable[[], object]] = deque()


@dataclass(frozen=True)
class ReadBack:
    """A way to read the run of a recording.

    Attributes:
        path: its run file; None for a recording in memory.
        run_id: the number of the run.
        error: why the file could not be written to its end, or None.
        is_whole: whether the recording has stopped.
        from_memory: reads what is in memory. Of a recording into a file that is all but the
            history.
    """

    path: Path | None
    run_id: str
    error: str | None
    is_whole: bool
    from_memory: Callable[[], Run]

    def run(self) -> Run:
        """The run, read now."""
        return self.from_memory() if self.path is None else self._of_file(self.path, None)

    def deferred(self) -> Run:
        """The run, read when something of it is first asked for. The file can be moved or removed
        until then, but for that of an old run of many, or one whose descriptor the program has
        closed. One that can't be read back is told now if it is another file by now."""
        path = self.path
        if path is None:
            return Run.deferred(self.from_memory)
        try:
            file = _OpenFile(path, self.run_id)
        except (OSError, RunFileError) as error:
            return self._without_history(error)
        return Run.deferred(lambda: self._of_file(path, file))

    def _of_file(self, path: Path, file: _OpenFile | None) -> Run:
        try:
            from_file = self._read(path, file)
        except (OSError, RunFileError) as error:
            return self._without_history(error)
        return from_file if self.error is None else self.from_memory().with_history_of(from_file)

    def _read(self, path: Path, file: _OpenFile | None) -> Run:
        run = None if file is None else file.read()
        run = run or _OpenFile(path, self.run_id).read()
        if run is None or run.environment.get("run_id") != self.run_id:
            raise RunFileError("it holds another run")
        is_checked = self.is_whole and self.error is None and run.notes
        if is_checked and _counts(run) != _counts(self.from_memory()):
            raise RunFileError("a part of it was overwritten")
        return run

    def _without_history(self, error: Exception) -> Run:
        lost = f"the history is lost: {self.path} can't be read back: {error}"
        warnings.warn(lost, RuntimeWarning, stacklevel=5)
        run = self.from_memory()
        run.notes = (*run.notes, lost)
        return run


class _OpenFile:
    """The run file, open to be read, whatever becomes of its name.

    Raises:
        OSError, RunFileError: it can't be read, or holds something else.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        aspects()  # is imported now: the file may have the last descriptor that can be opened
        # To open a pipe without O_NONBLOCK would be to wait.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        self._close = weakref.finalize(self, _close, self._descriptor, status)
        self._status = status
        if not stat.S_ISREG(status.st_mode):
            raise RunFileError("it is no regular file")
        header = memoryview(os.pread(self._descriptor, FILE_HEADER_BYTES, 0))
        if read_file_header(header) != int(run_id, 16):
            raise RunFileError("it holds another run")
        _closers.append(self._close)
        if len(_closers) > _MOST_OPEN:
            _closers.popleft()()

    def read(self) -> Run | None:
        """The run, once: then the file is closed. None where it has been closed before."""
        # Once detached, nothing else closes it.
        if self._close.detach() is None or not _is_still(self._descriptor, self._status):
            return None
        try:
            with open(self._descriptor, "rb", buffering=0, closefd=False) as file:
                return Run.from_blocks(read_blocks_of(file))
        finally:
            os.close(self._descriptor)


def _is_still(descriptor: int, status: os.stat_result) -> bool:
    """Return whether the descriptor leads to that file: programs close descriptors that they don't
    know, and open files of their own under the same number."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), status)
    return False


def _close(descriptor: int, status: os.stat_result) -> None:
    if _is_still(descriptor, status):
        os.close(descriptor)


def _counts(run: Run) -> tuple[object, ...]:
    """Return counts of a run's statistics: copies that agree in these lack nothing."""
    phases = {key: phase.count for key, phase in run.statistics.items()}
    return run.complete, run.names, run.step_totals.count, phases
