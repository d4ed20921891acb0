# SPDX-License-Identifier: Apache-2.0
"""The runs that are watched together: the ranks of a job, or one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyinstrument_gpu.watch.clocks import Clocks
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.watched_run import Unreadable, WatchedRun


class Watch:
    """Watches the files that a function names, which may become more.

    Args:
        files: from `run_files`.
    """

    def __init__(self, files: Callable[[], list[Path]]) -> None:
        self._files = files
        self._runs: dict[Path, WatchedRun] = {}

    def look(self, clocks: Clocks) -> list[LiveRun | Unreadable]:
        """What each of them says now, in the order of the files."""
        try:
            files = self._files()
        except OSError:  # the folder is gone, and perhaps its files are not
            files = [*self._runs]
        for path in files:
            self._runs.setdefault(path, WatchedRun(path))
        return [run.look(clocks) for run in self._runs.values()]

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
