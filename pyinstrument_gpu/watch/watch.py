# SPDX-License-Identifier: Apache-2.0
"""The runs that are watched together, the ranks of a job or one run: each look is what their files
say by now, and `watch --json` prints one a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.follower import MOST_BLOCKS, RunFollower
from pyinstrument_gpu.core.file.run_files import left_out
from pyinstrument_gpu.core.file.state import State, decode_state
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import JobError, RunFileError, RunFileVersionError
from pyinstrument_gpu.watch.heartbeat import Heartbeat, heartbeat
from pyinstrument_gpu.watch.live_run import LiveRun, json_of, live_run
from pyinstrument_gpu.watch.process import LookUp, MachineClocks, observation_of, process_state
from pyinstrument_gpu.watch.slow_steps import SlowStepSums

VERSION = 1
"""Of the objects: it changes when a key changes its meaning, or goes. Keys may be added."""
_MOST_BLOCKS_OF_ALL = 2048
"""So much history of all ranks together is looked at: 830,000 spans."""
_LEAST_BLOCKS = 4


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
    """A file of a format that this version of the package doesn't read: that stays so."""


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
        self._slow = SlowStepSums()
        self._changed: tuple[str | None, int, bool] | None = None
        self._changed_ns = 0
        self._has_changed = False

    def look(self, clocks: MachineClocks, most_blocks: int = MOST_BLOCKS) -> LiveRun | Unreadable:
        """Return what the file says now; `most_blocks` as in `RunFollower.look`."""
        try:
            blocks = self._follower.look(most_blocks)
            run = Run.from_blocks(blocks)
        except (OSError, RunFileError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            kind = UnknownFormat if isinstance(error, RunFileVersionError) else Unreadable
            return kind(str(self.path), reason or str(error))
        state = blocks.document(BlockType.STATE, decode_state) or State()
        sign, slow = self._sign(run, state, clocks), self._slow.look(run)
        return live_run(str(self.path), run, state, sign, blocks.damaged, slow)

    def close(self) -> None:
        self._follower.close()

    def _sign(self, run: Run, state: State, clocks: MachineClocks) -> Heartbeat:
        seen = (run.environment.get("run_id"), state.now_ns, state.final)
        if seen != self._changed:
            self._has_changed = self._changed is not None
            self._changed, self._changed_ns = seen, clocks.monotonic_ns
        return heartbeat(
            run,
            state,
            observation_of(run.environment, state.anchor, run.duration_ns, clocks, self._process),
            unchanged_ns=clocks.monotonic_ns - self._changed_ns,
            has_changed=self._has_changed,
            lost=self._follower.lost,
        )


class Watch:
    """Watches the files that a function names, which may become more.

    Args:
        files: from `run_files`.
    """

    def __init__(self, files: Callable[[], list[Path]]) -> None:
        self._files = files
        self._runs: dict[Path, WatchedRun] = {}

    def look(self, clocks: MachineClocks) -> list[LiveRun | Unreadable]:
        """Return what each of them says now, in the order of the files."""
        try:
            files = self._files()
        except (OSError, JobError):  # the folder is gone, or a job has begun that is much alike
            files = [*self._runs]
        for path in self._runs.keys() - files:  # of another job, as is known by now
            self._runs.pop(path).close()
        self._runs = {path: self._runs.get(path) or WatchedRun(path) for path in files}
        # One look takes a second at most, as far as that depends on how much history it reads.
        most_blocks = max(_LEAST_BLOCKS, _MOST_BLOCKS_OF_ALL // max(1, len(self._runs)))
        return [run.look(clocks, most_blocks) for run in self._runs.values()]

    def close(self) -> None:
        for run in self._runs.values():
            run.close()


def stream(
    watch: Watch,
    write: Callable[[str], None],
    wait: Callable[[], None],
    clocks: Callable[[], MachineClocks],
) -> None:
    """Write a line of JSON for each look, until nothing more will come of any run.

    Args:
        write: gets each line, without its end.
        wait: comes back when it is time for the next look.
        clocks: read at each look.

    Raises:
        RunFileVersionError: none of the runs has a format that is known.
    """
    while True:
        now = clocks()
        looks = watch.look(now)
        write(json.dumps(facts(looks, now), allow_nan=False))
        unknown = {run.file: run.reason for run in looks if isinstance(run, UnknownFormat)}
        if looks and len(unknown) == len(looks):
            raise RunFileVersionError("\n".join(left_out(unknown)))
        if all(
            run.heartbeat.condition.is_final
            if isinstance(run, LiveRun)
            else isinstance(run, UnknownFormat)
            for run in looks
        ):
            return
        wait()


def facts(looks: list[LiveRun | Unreadable], clocks: MachineClocks) -> dict[str, Any]:
    """Return one object of the stream: see docs/page.md."""
    return {
        "version": VERSION,
        "realtime_ns": clocks.realtime_ns,
        "runs": [json_of(look) if isinstance(look, LiveRun) else asdict(look) for look in looks],
    }
