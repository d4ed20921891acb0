# SPDX-License-Identifier: Apache-2.0
"""The progress of a blame, in a file, so that one that was killed goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.export.atomic_file import atomic_write


class Measured(msgspec.Struct, frozen=True):
    """A finished run.

    Attributes:
        commit: which commit ran, as its hash.
        block: the same number for runs that were made side by side, larger for later ones.
        steps: how many steps it had.
        step_ns: the elapsed time per step.
    """

    commit: str
    block: int
    steps: int
    step_ns: float


class Confirmation(msgspec.Struct):
    """A test of two neighbours, as it was planned before its first run.

    Attributes:
        before, after: the hashes of the commits.
        max_runs: of each.
        confidence: with which its intervals hold together.
        is_over: whether it has its result.
    """

    before: str
    after: str
    max_runs: int
    confidence: float
    is_over: bool = False


class _State(msgspec.Struct):
    version: int = 1
    worktrees: str | None = None
    runs: dict[str, Measured] = msgspec.field(default_factory=dict)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    confirmations: list[Confirmation] = msgspec.field(default_factory=list)


class Journal:
    """The state of a blame. Each change of it is in the file before anything else happens.

    Args:
        folder: where its file and the runs are; None to keep the state in memory alone.

    Raises:
        GateError: the file is none of a blame.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "state.json"
        self._state = _State()
        if self._path is not None and self._path.exists():
            try:
                self._state = msgspec.json.decode(self._path.read_bytes(), type=_State)
            except msgspec.DecodeError as error:
                raise GateError(
                    f"{self._path} is not the state of a blame ({error}): remove its folder to "
                    "begin anew"
                ) from error

    @property
    def runs(self) -> dict[str, Measured]:
        """The runs by name ("ends/baseline-01", for example), in the order in which they were
        made."""
        return self._state.runs

    @property
    def skipped(self) -> dict[str, str]:
        """The commits that can't be run, by hash, and why."""
        return self._state.skipped

    @property
    def confirmations(self) -> list[Confirmation]:
        return self._state.confirmations

    @property
    def worktrees(self) -> Path | None:
        """The folder of the checkouts, which may be left of a blame that was killed."""
        return None if self._state.worktrees is None else Path(self._state.worktrees)

    @worktrees.setter
    def worktrees(self, folder: Path) -> None:
        self._state.worktrees = str(folder)
        self.save()

    def save(self) -> None:
        if self._path is None:
            return
        with atomic_write(self._path) as file:
            file.write(msgspec.json.encode(self._state))
            file.flush()
            os.fsync(file.fileno())
