# SPDX-License-Identifier: Apache-2.0
"""The uncommitted changes in the program's repository, as git reports them.

git runs beside the program, as the child of a shell that has ended by the time that `ask` returns:
the program can't meet it in `os.wait`, and nobody waits for it. It takes no lock of the repository,
fetches nothing, and ends after some seconds of CPU time at the latest.
"""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

_SHELL = "/bin/sh"
_MOST_FILES = 100
_MOST_BYTES = 64 << 10
_END = b"\n.\n"
# A hash of what differs from the commit, the names of the files, and a mark that this is all.
# Files that git doesn't know count if they are Python's: a run file of ours, for one, is none.
_ASK = f"""(
ulimit -t 5
cd "$0" || exit
git() {{ nice -n 19 git -c core.fsmonitor=false -c core.quotePath=false "$@"; }}
new() {{ git ls-files --others --exclude-standard "$@" ':/*.py'; }}
names=$(git diff --name-only HEAD && new --full-name) || exit
{{
  git diff --no-ext-diff --no-textconv HEAD
  new -z | xargs -0r cat
}} | git hash-object --stdin
printf '%s\\n' "$names" | head -n {_MOST_FILES}
echo .
) &"""
_KEPT = ("PATH", "HOME", "XDG_CONFIG_HOME")
_SETTINGS = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C.UTF-8"}


class Uncommitted:
    """The answer, once it is there.

    Args:
        pipe: from which it is read, and which does not block; None if nobody could be asked.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe
        self._data = b""

    def facts(self) -> dict[str, Any]:
        """Return the environment's field `uncommitted`: a hash of all changes, None where there are
        none, and the names of the first changed files. Empty as long as it is not known."""
        self._read()
        if not self._data.endswith(_END):
            return {}
        lines = self._data.removesuffix(_END).decode(errors="replace").split("\n")
        files = [name for name in lines[1:] if name]
        return {"uncommitted": {"hash": lines[0] if files else None, "files": files}}

    def _read(self) -> None:
        if self._pipe is None:
            return
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._pipe, _MOST_BYTES):
                self._data += part
                if len(self._data) > _MOST_BYTES:
                    self._data = b""
                    break
            pipe, self._pipe = self._pipe, None
            os.close(pipe)


def ask(folder: Path) -> Uncommitted:
    """Begin to ask about the repository around a folder: once per process, as changes that come
    while the program runs are not those that it runs with. Takes some milliseconds."""
    return _ask(folder, os.getpid())


@lru_cache(4)
def _ask(folder: Path, _pid: int) -> Uncommitted:
    try:
        read, write = os.pipe()
    except OSError:
        return Uncommitted(None)
    try:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        shell = os.posix_spawn(
            _SHELL,
            [_SHELL, "-c", _ASK, str(folder)],
            {**kept, **_SETTINGS},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsigmask=(),
            setsid=True,
        )
        with contextlib.suppress(ChildProcessError):  # of a program that ignores its children
            os.waitpid(shell, 0)
        os.set_blocking(read, False)
    except (OSError, NotImplementedError):
        os.close(read)
        return Uncommitted(None)
    finally:
        os.close(write)
    return Uncommitted(read)
