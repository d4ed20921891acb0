# SPDX-License-Identifier: Apache-2.0
"""The kernel's counts of processor use, in the files of `/proc` and of control groups.

A container may hide any of them, and other kernels lack some: what can't be read is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_RECORDER = "pig-"
"""The names of its threads begin with this."""
_MOST_FOUND = 1024
"""So many threads, and processes, are looked at."""
_TICKS_OF_PROCESS = slice(11, 15)
"""What a process and those that it has waited for have used, behind its name in `stat`."""


def known(read: Callable[[Path], _T], proc: Path) -> _T | None:
    """Return what a function reads there; None where it can't."""
    try:
        return read(proc)
    except (OSError, ValueError, LookupError):
        return None


def busy_ns(proc: Path) -> int:
    """Return how long all programs have used the processors that this process may use."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in (proc / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name in names:
            names.remove(name)
            user, nice, system, _idle, _waiting, *interrupts = map(int, fields[:8])
            ticks += user + nice + system + sum(interrupts)
    if names:
        raise ValueError("some processors are missing")
    return _nanoseconds(ticks)


def own_ns(proc: Path) -> int:
    """Return how long this process and all that it has started have used processors."""
    times = os.times()
    return round(1e9 * (times.user + times.system)) + started_ns(proc)


def started_ns(proc: Path) -> int:
    """Return how long the processes that this one has started have used processors."""
    times = os.times()
    waited_for_ns = round(1e9 * (times.children_user + times.children_system))
    return waited_for_ns + _nanoseconds(sum(map(_ticks, _started(proc))))


def _started(proc: Path) -> Iterator[Path]:
    """The processes that this one has started and not waited for, and those that they have."""
    waiting, found = [proc / "self"], 0
    while waiting and found < _MOST_FOUND:
        for thread in (waiting.pop() / "task").iterdir():
            children = [proc / pid for pid in (thread / "children").read_text().split()]
            found += len(children)
            waiting += children
            yield from children


def _ticks(process: Path) -> int:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[_TICKS_OF_PROCESS]))


def _nanoseconds(ticks: int) -> int:
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def pressure_ns(proc: Path) -> int:
    """Return for how long some program has waited for a processor."""
    some = (proc / "pressure" / "cpu").read_text().splitlines()[0]
    return 1000 * int(some.rpartition("total=")[2])


def throttled_ns(proc: Path) -> int:
    """Return for how long the CPU limits of the control groups that this process is in have stopped
    those in them; of cgroup v1 and v2."""
    total = None
    for path in group_files(proc):
        text = known(Path.read_text, path)
        counts = dict(line.split()[:2] for line in (text or "").splitlines())
        if "throttled_usec" in counts:
            total = (total or 0) + 1000 * int(counts["throttled_usec"])
        elif "throttled_time" in counts:
            total = (total or 0) + int(counts["throttled_time"])
    if total is None:
        raise ValueError("no control group says so")
    return total


def group_files(proc: Path) -> list[Path]:
    """Return the files of the control groups that this process is in, from its own one up."""
    place, folder = _groups(proc)
    folders = [folder]
    while folders[-1] != place:
        folders.append(folders[-1].parent)
    return [one / "cpu.stat" for one in folders]


def _groups(proc: Path) -> tuple[Path, Path]:
    """Return where control groups with processors are mounted, and the process's own folder."""
    own = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    v1 = [path for _, controllers, path in own if "cpu" in controllers.split(",")]
    v2 = [path for number, controllers, path in own if number == "0" and not controllers]
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        root, place = (_plain(field) for field in mount.split()[3:5])
        kind, _, options = system.split(" ", 2)
        is_v1 = kind == "cgroup" and "cpu" in options.split(",")
        if (v1 and is_v1) or (v2 and not v1 and kind == "cgroup2"):
            inside = os.path.relpath((v1 or v2)[0], root)
            # A path that is not below the root is one of another namespace.
            below = Path(place) if inside.startswith("..") else Path(place, inside)
            return Path(place), below
    raise LookupError("no control groups are mounted")


def _plain(path: str) -> str:
    """Return a path as mountinfo writes it, with an escape for a space."""
    return path.replace("\\040", " ")


def thread_waits(proc: Path) -> Mapping[int, tuple[str, int]]:
    """Return by the number of a thread of this process its name, and how long it has waited for a
    processor; without those of the recorder."""
    waits = {}
    for thread in [*(proc / "self" / "task").iterdir()][:_MOST_FOUND]:
        ran, waited = map(int, (thread / "schedstat").read_text().split()[:2])
        name = (thread / "comm").read_text().strip()
        if ran and not name.startswith(_RECORDER):
            number = int(thread.name)
            waits[number] = "the main thread" if number == os.getpid() else name, waited
    return waits
