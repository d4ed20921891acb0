# SPDX-License-Identifier: Apache-2.0
"""A copy of the working directory, made anew for each trial: what a program writes there, a
checkpoint for example, neither harms the user's files nor changes the next trial.

All copies are of one snapshot, so that a file that the user saves meanwhile changes none of them.
Environments, histories of version control, caches and run files are not copied. Data that is too
large to copy is linked by name, which the user decides: a program may write to it.
"""

from __future__ import annotations

import contextlib
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
        folder: for the snapshot and the copies.
        links: names in it that are linked instead.

    Attributes:
        place: where the copies are.

    Raises:
        TrialError: it is too large, or a link names nothing in it.
    """

    def __init__(self, source: Path, folder: Path, links: Sequence[str] = ()) -> None:
        self._source = source.resolve()
        self._snapshot = folder / "snapshot"
        self.place = folder / "work"
        self._links = {Path(os.path.normpath(self._source / link)): link for link in links}
        for path, link in self._links.items():
            if not path.exists() or self._source not in path.parents:
                raise TrialError(f"--link: there is no {link} in {source} to be linked")
        self._check_size()

    def renew(self) -> Path:
        """Make a copy in place of the last one."""
        if not self._snapshot.exists():
            self._take_snapshot()
        self.remove()
        shutil.copytree(self._snapshot, self.place, symlinks=True)
        for path in self._links:
            target = self.place / path.relative_to(self._source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
        return self.place

    def remove(self) -> None:
        if not self.place.exists():
            return
        with contextlib.suppress(OSError):
            shutil.rmtree(self.place)
            return
        for folder, _, _ in os.walk(self.place):  # of which some can't be written to
            os.chmod(folder, 0o700)
        shutil.rmtree(self.place)

    def original(self, file: str) -> Path | None:
        """Return the file of the user of which this one is a copy; None for others, and where it
        has changed since."""
        path = Path(file)
        if not path.is_relative_to(self.place):
            return None
        inside = path.relative_to(self.place)
        found, copied = self._source / inside, self._snapshot / inside
        is_same = found.is_file() and copied.is_file()
        return found if is_same and found.read_bytes() == copied.read_bytes() else None

    def _take_snapshot(self) -> None:
        shutil.copytree(
            self._source,
            self._snapshot,
            symlinks=True,
            ignore=lambda folder, names: {
                name for name in names if self._is_left_out(os.path.join(folder, name))
            },
        )
        for link in _links_in(self._snapshot):
            # A link that leads into the directory leads to the same in the copy, and one that
            # leads out of it to what it led to.
            inside = link.relative_to(self._snapshot)
            target = Path(os.path.normpath((self._source / inside).parent / os.readlink(link)))
            link.unlink()
            if target.is_relative_to(self._source):
                target = self.place / target.relative_to(self._source)
            link.symlink_to(target)

    def _is_left_out(self, path: str) -> bool:
        return (
            Path(path) in self._links
            or os.path.basename(path) in _NOT_COPIED
            or path.endswith(".gpurun")
            or os.path.exists(os.path.join(path, "pyvenv.cfg"))
            or not any(is_one(path) for is_one in (os.path.islink, os.path.isdir, os.path.isfile))
            or not (os.path.islink(path) or os.access(path, os.R_OK))
        )

    def _check_size(self) -> None:
        total, count = 0, 0
        by_name: dict[str, int] = {}
        for path in self._files():
            with contextlib.suppress(OSError):
                size_bytes = os.lstat(path).st_size
                top = os.path.relpath(path, self._source).split(os.sep)[0]
                by_name[top] = by_name.get(top, 0) + size_bytes
                total, count = total + size_bytes, count + 1
            if total > MOST_BYTES or count > MOST_FILES:
                largest = max(by_name, key=lambda name: by_name[name])
                raise TrialError(
                    f"trials run in copies of the working directory, and {self._source} is too "
                    f"large: at most {size(MOST_BYTES)} in {MOST_FILES:,} files are copied. Give "
                    f"`--link {largest}` if the program only reads that, or --in-place to run it "
                    "where it is"
                )

    def _files(self) -> Iterator[str]:
        for folder, names, files in os.walk(self._source):
            names[:] = [name for name in names if not self._is_left_out(os.path.join(folder, name))]
            paths = (os.path.join(folder, name) for name in files)
            yield from (path for path in paths if not self._is_left_out(path))


def _links_in(folder: Path) -> Iterator[Path]:
    for place, names, files in os.walk(folder):
        yield from (Path(place, one) for one in (*names, *files) if Path(place, one).is_symlink())
