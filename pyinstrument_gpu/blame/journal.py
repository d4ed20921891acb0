# SPDX-License-Identifier: Apache-2.0
"""The progress of a blame, in a file, so that one that was killed goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.errors import GateError

_FILE = "state.json"


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


class Journal(msgspec.Struct):
    """The state of a blame. Each change of it is in its file before anything else happens.

    Attributes:
        worktrees: the folder of the checkouts, which may be left of a blame that was killed.
        runs: in the order in which they were made, by name: "ends/baseline-01", for example.
        skipped: the commits that can't be run, by hash, and why.
    """

    version: int = 1
    worktrees: str | None = None
    runs: dict[str, Measured] = msgspec.field(default_factory=dict)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    confirmations: list[Confirmation] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Journal:
        """Return that of the blame in a folder.

        Raises:
            GateError: the file there is none of a blame.
        """
        path = folder / _FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except msgspec.DecodeError as error:
            raise GateError(
                f"{path} is not the state of a blame ({error}): remove its folder to begin anew"
            ) from error

    def save(self, folder: Path) -> None:
        with atomic_write(folder / _FILE, follow_links=False) as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
