# SPDX-License-Identifier: Apache-2.0
"""What /proc says of processes that record. It is only read, and what it hides stays unknown."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.core.process_state import ProcessState
from pyinstrument_gpu.watch.clocks import Clocks

_SLACK_NS = 2 * 10**9
_IN_MEMORY = "/memfd:pyinstrument_gpu"
"""What a recording in memory keeps open (`MemoryStorage`)."""


def process_state(
    pid: int, began_monotonic_ns: int, clocks: Clocks, proc: Path = Path("/proc")
) -> ProcessState:
    """Whether the process of a recording is still there.

    Args:
        pid: its number, on this machine.
        began_monotonic_ns: when the recording began. A process that began later has only got the
            same number.
    """
    try:
        fields = _stat_fields(pid, proc)
    except (FileNotFoundError, ProcessLookupError):
        # Where the processes of others are hidden, the first of all is hidden too.
        return ProcessState.GONE if (proc / "1").exists() else ProcessState.UNKNOWN
    except (OSError, ValueError, IndexError):
        return ProcessState.UNKNOWN
    asleep_ns = clocks.boottime_ns - clocks.monotonic_ns
    began_ns = int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
    if began_ns > began_monotonic_ns + asleep_ns + _SLACK_NS or fields[0] in "ZXx":
        return ProcessState.GONE
    return ProcessState.STOPPED if fields[0] in "Tt" else ProcessState.ALIVE


def _stat_fields(pid: int, proc: Path) -> list[str]:
    """What stands behind the name, which may hold anything: the state, the parent, ..."""
    text = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    fields = text.rpartition(")")[2].split()
    int(fields[19])
    return fields


def children(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The processes that a process has started, and those that they have, as far as they can be
    seen."""
    parents: dict[int, list[int]] = {}
    for other in _pids(proc):
        try:
            parents.setdefault(int(_stat_fields(other, proc)[1]), []).append(other)
        except (OSError, ValueError, IndexError):
            continue
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def own_processes(proc: Path = Path("/proc")) -> Iterator[int]:
    """The processes of this user, but this one."""
    for pid in _pids(proc):
        try:
            if os.stat(proc / str(pid)).st_uid == os.getuid() and pid != os.getpid():
                yield pid
        except OSError:
            continue


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError:
        return []


def recorded_files(pid: int, proc: Path = Path("/proc")) -> tuple[list[Path], bool]:
    """The run files that a process has open for writing, and whether it records in memory.

    Raises:
        FileNotFoundError: there is no such process.
        PermissionError: it is another user's.
    """
    folder = proc / str(pid) / "fd"
    found: dict[Path, None] = {}
    in_memory = False
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder / name)
            in_memory |= target.startswith(_IN_MEMORY)
            # Those who only read it, `watch` among them, have no right to write on the link.
            is_written = os.lstat(folder / name).st_mode & stat.S_IWUSR
            if is_written and os.path.isabs(target) and is_run_file(target):
                found[Path(target)] = None
        except OSError:
            continue
    return list(found), in_memory
