# SPDX-License-Identifier: Apache-2.0
"""A run file that is watched: each look is what it says by now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.follower import RunFollower
from pyinstrument_gpu.core.file.state import State, decode_state
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileError, RunFileVersionError
from pyinstrument_gpu.watch.clocks import Clocks
from pyinstrument_gpu.watch.live_run import LiveRun, live_run
from pyinstrument_gpu.watch.process import process_state
from pyinstrument_gpu.watch.sightings import LookUp, sighting_of
from pyinstrument_gpu.watch.sign_of_life import SignOfLife, sign_of_life


@dataclass(frozen=True)
class Unreadable:
    """A run file that can't be read.

    Attributes:
        file: its path.
        reason: why.
    """

    file: str
    reason: str


class UnknownFormat(Unreadable):
    """One of a format that this version of the package doesn't read: that stays so."""


class WatchedRun:
    """Watches one run file.

    Args:
        path: the file, which need not be there yet.
        process: looks a process up.
    """

    def __init__(self, path: Path, process: LookUp = process_state) -> None:
        self.path = path
        self._process = process
        self._follower = RunFollower(path)
        self._changed: tuple[str | None, int, bool] | None = None
        self._changed_ns = 0
        self._has_changed = False

    def look(self, clocks: Clocks) -> LiveRun | Unreadable:
        """What it says now."""
        try:
            blocks = self._follower.look()
            run = Run.from_blocks(blocks)
        except (OSError, RunFileError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            kind = UnknownFormat if isinstance(error, RunFileVersionError) else Unreadable
            return kind(str(self.path), reason or str(error))
        state = blocks.document(BlockType.STATE, decode_state) or State()
        return live_run(str(self.path), run, state, self._sign(run, state, clocks), blocks.damaged)

    def close(self) -> None:
        self._follower.close()

    def _sign(self, run: Run, state: State, clocks: Clocks) -> SignOfLife:
        seen = (run.environment.get("run_id"), state.now_ns, state.final)
        if seen != self._changed:
            self._has_changed = self._changed is not None
            self._changed, self._changed_ns = seen, clocks.monotonic_ns
        return sign_of_life(
            run,
            state,
            sighting_of(run.environment, state.anchor, run.duration_ns, clocks, self._process),
            unchanged_ns=clocks.monotonic_ns - self._changed_ns,
            has_changed=self._has_changed,
            whereabouts=self._follower.whereabouts,
        )
