# SPDX-License-Identifier: Apache-2.0
"""A copy of the working directory, made anew for each trial: what a program writes there, a
checkpoint for example, neither harms the user's files nor changes the next trial.

Environments, histories of version control, caches and run files are not copied. Data that is too
large to copy is linked by name, which the user decides: a program may write to it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyinstrument_gpu.errors import TrialError
from pyinstrument_gpu.parts.words import size

MOST_BYTES = 200 << 20
MOST_FILES = 20_000
_NOT_COPIED = {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".tox"}


class WorkingCopy:
    """Copies of a directory in one place, one after the other.

    Args:
        source: what is copied.
        place: where copies are made; nothing must be there.
        links: names in it that are linked instead.

    Raises:
        TrialError: it is too large, or a link names nothing in it.
    """

    def __init__(self, source: Path, place: Path, links: Sequence[str] = ()) -> None:
        self._source = source.resolve()
        self.place = place
        self._links = {self._source / link for link in links}
        for link in sorted(self._links):
            if not link.exists() or not link.is_relative_to(self._source):
                raise TrialError(f"--link: there is no {link.name} in {source} to be linked")
        self._check_size()

    def renew(self) -> Path:
        """Make a copy in place of the last one."""
        self.remove()
        shutil.copytree(
            self._source,
            self.place,
            symlinks=True,
            ignore=self._ignored,
            ignore_dangling_symlinks=True,
        )
        for link in self._links:
            target = self.place / link.relative_to(self._source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(link)
        for link in _links_in(self.place):
            # One that leads out of the directory leads to the same from the copy.
            inside = os.path.relpath(link, self.place)
            target = (self._source / inside).parent / os.readlink(link)
            if not Path(os.path.normpath(target)).is_relative_to(self._source):
                link.unlink()
                link.symlink_to(target)
        return self.place

    def remove(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def original(self, file: str) -> Path | None:
        """Return the file of the user of which this one is a copy; None for others."""
        path = Path(file)
        if not path.is_relative_to(self.place):
            return None
        found = self._source / path.relative_to(self.place)
        return found if found.is_file() else None

    def _ignored(self, folder: str, names: list[str]) -> set[str]:
        return {name for name in names if self._is_left_out(Path(folder, name))}

    def _is_left_out(self, path: Path) -> bool:
        return (
            path in self._links
            or path.name in _NOT_COPIED
            or path.suffix == ".gpurun"
            or (path / "pyvenv.cfg").exists()
            or not (path.is_symlink() or path.is_dir() or path.is_file())  # a socket or a pipe
        )

    def _check_size(self) -> None:
        total, count = 0, 0
        by_name: dict[str, int] = {}
        for folder, names, files in os.walk(self._source):
            names[:] = [name for name in names if not self._is_left_out(Path(folder, name))]
            for name in files:
                path = Path(folder, name)
                if self._is_left_out(path) or path.is_symlink():
                    continue
                size_bytes = path.stat().st_size
                top = path.relative_to(self._source).parts[0]
                by_name[top] = by_name.get(top, 0) + size_bytes
                total, count = total + size_bytes, count + 1
                if count > MOST_FILES:
                    break
        if total > MOST_BYTES or count > MOST_FILES:
            largest = max(by_name, key=lambda name: by_name[name])
            raise TrialError(
                f"trials run in copies of the working directory, and {self._source} is too large "
                f"for that: {size(total)} in {count} files, at most {size(MOST_BYTES)} in "
                f"{MOST_FILES} are copied. Give `--link {largest}` for data that the program only "
                "reads, or --in-place to run it where it is"
            )


def _links_in(folder: Path) -> Iterator[Path]:
    for place, names, files in os.walk(folder):
        for name in [*names, *files]:
            path = Path(place, name)
            if path.is_symlink() and not os.path.isabs(os.readlink(path)):
                yield path
