# SPDX-License-Identifier: Apache-2.0
"""The commits that a blame looks at, and a checkout of each in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate.sides import in_group, last_lines, new_log

_OF_ANOTHER_PLACE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git's hooks set: it would send git to the user's own checkout."""
_PREFIX = "pyinstrument-gpu-blame-"
_MARK = ".made-by-pyinstrument-gpu"


class Commit(NamedTuple):
    """A commit with the first line of its message."""

    sha: str
    subject: str

    @property
    def short(self) -> str:
        return self.sha[:10]

    @property
    def text(self) -> str:
        return f"{self.short} ({self.subject})"


class Repository:
    """The git repository of a directory, of which only the list of worktrees is ever changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.root = Path(self._git("rev-parse", "--show-toplevel"))
        self.git_folder = Path(self._git("rev-parse", "--path-format=absolute", "--git-common-dir"))
        self.subfolder = self._git("rev-parse", "--show-prefix")

    def uncommitted(self) -> list[str]:
        """Return the files that git has, and whose changes no commit has."""
        return self._git("diff", "--name-only", "HEAD", "--").splitlines()

    def commits(self, good: str, bad: str) -> list[Commit]:
        """Return the commits from the good one to the bad one, by first parents, so that a merge is
        one change.

        Raises:
            GateError: git does not know them, or the bad one does not follow on the good one.
        """
        shas = [
            self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
            for name in (good, bad)
        ]
        listed = self._git("rev-list", "--first-parent", "--reverse", f"{shas[0]}..{shas[1]}")
        between = listed.split()
        if not between or self._git("rev-parse", f"{between[0]}^1") != shas[0]:
            raise GateError(
                f"{bad} does not follow on {good} by first parents, so there is no series of "
                f"commits between them. `git log --first-parent {bad}` shows those that are "
                "possible in its place"
            )
        log = ("log", "--no-walk=unsorted", "--format=%H %s", "--end-of-options")
        lines = self._git(*log, shas[0], *between).splitlines()
        return [Commit(sha, subject) for sha, _, subject in (line.partition(" ") for line in lines)]

    def add_worktree(self, place: Path, commit: Commit) -> None:
        self._git("worktree", "add", "--quiet", "--detach", str(place), commit.sha)

    def remove_worktrees(self, folder: Path) -> None:
        """Remove the worktrees in a folder of `make_folder`, and the folder. Any other stays."""
        if not self._has_made(folder):
            return
        listed = self._git("worktree", "list", "--porcelain").splitlines()
        for line in listed:
            place = Path(line.removeprefix("worktree "))
            if line.startswith("worktree ") and place.is_relative_to(os.path.realpath(folder)):
                with contextlib.suppress(GateError):  # what is left of it goes with the folder
                    self._git("worktree", "remove", "--force", "--force", str(place))
        shutil.rmtree(folder, ignore_errors=True)

    def make_folder(self) -> Path:
        """Make a temporary folder for worktrees."""
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.realpath(tempfile.gettempdir())))
        with atomic_write(folder / _MARK, follow_links=False) as mark:
            mark.write(os.fsencode(self.git_folder))
        return folder

    def _has_made(self, folder: Path) -> bool:
        """Return whether it is such a folder: what a state file names may be any."""
        if folder.parent != Path(os.path.realpath(tempfile.gettempdir())):
            return False
        with contextlib.suppress(OSError):
            found = folder.lstat()  # no link
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_own and folder.name.startswith(_PREFIX):
                return (folder / _MARK).read_bytes() == os.fsencode(self.git_folder)
        return False

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(
            # No hook of the repository knows of these checkouts.
            ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
            cwd=self._directory,
            env={k: v for k, v in os.environ.items() if k not in _OF_ANOTHER_PLACE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            why = done.stderr.strip() or "it is not there"
            raise GateError(f"git {' '.join(arguments)}: {why}")
        return done.stdout.strip()


class Checkouts:
    """A worktree for each commit that was asked for, in a temporary folder. They are kept, since a
    commit runs many times and may take long to build.

    Args:
        build: a shell command that is run once in each, in the folder that corresponds to the one
            in which the user is.
    """

    def __init__(self, repository: Repository, build: str | None, show_output: bool) -> None:
        self._repository = repository
        self._build = build
        self._show_output = show_output
        self._ready: dict[str, Path] = {}
        self.folder = repository.make_folder()

    def of(self, commit: Commit) -> Path:
        """The folder in which the commit is to be run.

        Raises:
            GateError: it could not be built, or has no such folder.
        """
        if commit.sha not in self._ready:
            place = self.folder / commit.short
            self._repository.add_worktree(place, commit)
            folder = place / self._repository.subfolder
            if not folder.is_dir():
                raise GateError(f"it has no folder {self._repository.subfolder}")
            if self._build is not None:
                self._run_build(self._build, folder, self.folder / f"{commit.short}.log")
            self._ready[commit.sha] = folder
        return self._ready[commit.sha]

    def _run_build(self, build: str, folder: Path, log: Path) -> None:
        with contextlib.ExitStack() as leave:
            output = None if self._show_output else leave.enter_context(new_log(log))
            words = ["/bin/sh", "-c", build]
            code = leave.enter_context(in_group(words, folder, os.environ, output, build)).wait()
        if code:
            tail = "" if self._show_output else last_lines(log)
            raise GateError(f"its build ended with exit code {code}: {build}{tail}")

    def remove(self) -> None:
        self._repository.remove_worktrees(self.folder)
