# SPDX-License-Identifier: Apache-2.0
"""The revision of the code that runs, as git has it checked out; read without running git."""

from __future__ import annotations

from pathlib import Path


def code_revision(folder: Path) -> str | None:
    """The commit of the repository around a folder, or None. What was changed since is not seen."""
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.is_file():  # a worktree or a submodule
                git = place / git.read_text().removeprefix("gitdir:").strip()
            if (git / "HEAD").is_file():
                return _commit(git, (git / "HEAD").read_text().strip())
    except (OSError, UnicodeDecodeError, ValueError):
        pass
    return None


def _commit(git: Path, head: str) -> str | None:
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    shared = git / "commondir"
    folders = [git, git / shared.read_text().strip()] if shared.is_file() else [git]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
        packed = folder / "packed-refs"
        lines = packed.read_text().splitlines() if packed.is_file() else []
        for line in lines:
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None
