# SPDX-License-Identifier: Apache-2.0
"""Observations of processes that record, beside their files: by the clocks of this machine and by
/proc, which is only read. What it hides stays unknown."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pyinstrument_gpu.core.clocks import SAME_BOOT_NS, booted_ns
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.file.run_files import is_run_file
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.job import Job, RankData

_SLACK_NS = 2 * 10**9
_IN_MEMORY = "/memfd:pyinstrument_gpu"
"""What a recording in memory keeps open (`MemoryStorage`)."""


@dataclass(frozen=True)
class MachineClocks:
    """The clocks of a machine at one moment.

    Attributes:
        host: its name.
        monotonic_ns: CLOCK_MONOTONIC, which a run's anchors have.
        boottime_ns: CLOCK_BOOTTIME, in which the kernel says when processes began. It also counts
            while the machine sleeps.
        realtime_ns: the wall clock.
    """

    host: str
    monotonic_ns: int
    boottime_ns: int
    realtime_ns: int

    @classmethod
    def now(cls) -> MachineClocks:
        monotonic_ns = time.monotonic_ns()
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        boottime_ns = monotonic_ns if boot is None else time.clock_gettime_ns(boot)
        host = os.uname().nodename if hasattr(os, "uname") else ""
        return cls(host, monotonic_ns, boottime_ns, time.time_ns())

    def are_of(self, environment: Mapping[str, Any], anchor: Mapping[str, int]) -> bool:
        """Return whether a run is recorded on this machine since it was started, as far as can be
        told: the name is the same, and so is the moment at which the monotonic clock began."""
        its_ns = booted_ns(anchor)
        if its_ns is None or environment.get("host") != self.host:
            return False
        return abs(self.realtime_ns - self.monotonic_ns - its_ns) < SAME_BOOT_NS


def process_state(
    pid: int, began_monotonic_ns: int, clocks: MachineClocks, proc: Path = Path("/proc")
) -> ProcessState:
    """Return whether the process of a recording is still there.

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
    """Return the fields after the name, which may hold anything: the state, the parent, ..."""
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


LookUp: TypeAlias = Callable[[int, int, MachineClocks], ProcessState]
"""What is known of a process: a function of its number, of when its recording began and of the
clocks."""


def observations_of(
    job: Job,
    clocks: MachineClocks,
    wait: Callable[[], None],
    process: LookUp = process_state,
) -> dict[int, ProcessObservation]:
    """Return what can be seen of each rank.

    Whether a process of another machine lives can't be seen, but perhaps its file changes.

    Args:
        clocks: of this machine, read after the job was.
        wait: for longer than a recorder needs to write again; called if a rank that is not
            complete ran on another machine.
        process: looks a process up.
    """
    found = {}
    elsewhere = []
    for rank in job.ranks:
        if rank.complete:
            found[rank.rank] = ProcessObservation()
            continue
        anchor = rank.end.anchor
        seen = observation_of(rank.environment, anchor, rank.duration_ns, clocks, process)
        found[rank.rank] = seen
        if seen.silent_ns is None:
            elsewhere.append(rank)
    if elsewhere:
        before = [_written(rank) for rank in elsewhere]
        wait()
        for rank, written in zip(elsewhere, before, strict=True):
            found[rank.rank] = ProcessObservation(is_writing=written != _written(rank))
    return found


def observation_of(
    environment: Mapping[str, Any],
    anchor: Mapping[str, int],
    duration_ns: int,
    clocks: MachineClocks,
    process: LookUp = process_state,
) -> ProcessObservation:
    """Return what can be seen of the process of a run; nothing if it is of another machine.

    Args:
        anchor: the last reading of its clocks.
        duration_ns: from its begin to its last heartbeat.
    """
    if not clocks.are_of(environment, anchor):
        return ProcessObservation()
    began_ns = anchor["monotonic_ns"] - anchor.get("run_ns", duration_ns)
    pid = environment.get("pid")
    state = ProcessState.UNKNOWN if pid is None else process(pid, began_ns, clocks)
    return ProcessObservation(state, max(0, clocks.monotonic_ns - began_ns - duration_ns))


def _written(rank: RankData) -> tuple[int, int] | None:
    """Return when the rank's file was written last, and its size."""
    try:
        status = os.stat(rank.file or "")
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
