# SPDX-License-Identifier: Apache-2.0
"""Ranks of which something is left, made by hand: steps of 100 ms, and the last one open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.aspects.stalls.data import DistributedCall, GroupProgress, Stall
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.ending_report import JobEnding, job_ending
from pyinstrument_gpu.job.job import Job, RankData, RunEnd

MS = 1_000_000
S = 1000 * MS
STEP_NS = 100 * MS
BEGAN_NS = 500 * S
"""When the runs began, by the monotonic clock of their machine."""
BOOTED_NS = 1_700_000_000 * S
GONE = ProcessObservation(ProcessState.GONE, 60 * S)
ALIVE = ProcessObservation(ProcessState.ALIVE, 50 * MS)
HELD = ProcessObservation(ProcessState.STOPPED, 31 * S)
MUTE = ProcessObservation(ProcessState.ALIVE, 31 * S)
PATHS = ("data", "forward", "backward", "backward/allreduce")
_OFFSETS_NS = {"data": 0, "forward": 10 * MS, "backward": 50 * MS, "backward/allreduce": 80 * MS}


def group(ranks: tuple[int, ...] = (0, 1, 2), name: str = "0") -> ProcessGroup:
    return ProcessGroup(name, f"group_{name}", ranks, "gloo")


def collectives(
    *asked: tuple[int, int, str],
    groups: tuple[ProcessGroup, ...] = (group(),),
    number: int = 0,
    ended: int = -1,
) -> Collectives:
    """Operations of one group, each as its number, when it was asked for, and its name.

    Args:
        number: of the group.
        ended: number of the last one that ended; gloo's are not seen to.
    """
    names = list(dict.fromkeys(name for _, _, name in asked))
    events = np.zeros(len(asked), COLLECTIVE_DTYPE)
    for column in ("started_ns", "ended_ns", "duration_ns"):
        events[column] = -1
    for event, (sequence, created_ns, name) in zip(events, asked, strict=True):
        event["sequence"], event["created_ns"], event["group"] = sequence, created_ns, number
        event["operation"] = names.index(name)
        if sequence <= ended:
            event["ended_ns"] = created_ns + MS
    return Collectives(groups, tuple(names), events, was_read=True)


def rank(
    number: int,
    *,
    step: int = 41,
    path: str | None = "backward/allreduce",
    stuck_ns: int = 50 * MS,
    at_ns: int | None = None,
    complete: bool = False,
    host: str | None = "box",
    pid: int | None = None,
    exception: str | None = None,
    exit_code: int | None = None,
    lost_peer: bool = False,
    is_cut_short: bool = True,
    paths: tuple[str, ...] = PATHS,
    error: str | None = None,
    **parts: Any,
) -> RankData:
    """A rank whose last step is open, or cut short where it is complete.

    Args:
        stuck_ns: how long it had been in the phase `path` at its last heartbeat.
        at_ns: when that was, since its run began; right after the phase usually begins, and
            `stuck_ns`, by default.
    """
    begins_ns = np.arange(step + complete) * STEP_NS
    begin_ns = step * STEP_NS
    usual_ns = begin_ns + (0 if path is None else _OFFSETS_NS[path])
    end_ns = usual_ns + stuck_ns if at_ns is None else at_ns
    environment: dict[str, Any] = {"rank": number, "pid": 4000 + number if pid is None else pid}
    if host is not None:
        environment["host"] = host
    if exception is not None or exit_code is not None:
        environment["program_end"] = {"exit_code": exit_code, "exception": exception}
    if lost_peer:
        environment["program_end"] = {
            "exit_code": 1,
            "exception": "RuntimeError",
            "lost_peer": True,
        }
    is_ended = complete
    step_ns = np.full(len(begins_ns), STEP_NS)
    closed = [Step(i, i * STEP_NS, (i + 1) * STEP_NS, None, 1, True, 0) for i in range(step)]
    last = Step(step, begin_ns, end_ns if is_ended else -1, None, 1, not is_cut_short, 0)
    if is_ended:
        closed.append(last)
        step_ns[-1] = end_ns - begin_ns
    first_begin_ns = np.array([begins_ns + _OFFSETS_NS[one] for one in paths], np.int64)
    made: dict[str, Any] = {
        "rank": number,
        "file": f"run.rank{number}.gpurun",
        "environment": environment,
        "complete": complete,
        "notes": (),
        "dropped": {},
        "duration_ns": end_ns,
        "began_realtime_ns": BOOTED_NS + BEGAN_NS,
        "steps": np.arange(len(begins_ns)),
        "steps_ended": len(begins_ns),
        "step_begin_ns": begins_ns,
        "step_ns": step_ns,
        "paths": paths,
        "first_begin_ns": first_begin_ns.reshape(len(paths), -1),
        "last_end_ns": first_begin_ns.reshape(len(paths), -1) + MS,
        "self_ns": np.full(first_begin_ns.shape, MS),
        "device_ns": np.full(first_begin_ns.shape, -1),
        "end": RunEnd(
            anchor={
                "run_ns": end_ns,
                "monotonic_ns": BEGAN_NS + end_ns,
                "realtime_ns": BOOTED_NS + BEGAN_NS + end_ns,
            },
            step=last,
            path=path,
            path_begin_ns=-1 if path is None else end_ns - stuck_ns,
            last_steps=tuple(closed[-5:]),
            error=error,
        ),
    }
    return RankData(**(made | parts))


def job(*ranks: RankData, world_size: int = 0, **parts: Any) -> Job:
    return Job(ranks, world_size or len(ranks), **parts)


def said(of: Job, *observations: ProcessObservation) -> JobEnding:
    return job_ending(
        of, {one.rank: sight for one, sight in zip(of.ranks, observations, strict=True)}
    )


def outcome(document: JobEnding) -> tuple[str, int | None, tuple[int, ...]]:
    return document.outcome, document.rank, document.suspects


def asked(
    number: int,
    last: int,
    stuck_ns: int,
    path: str = "backward/allreduce",
    is_watched: bool = True,
    **parts: Any,
) -> RankData:
    """A rank that has asked for so many operations, a step each, the last where it is now.

    Args:
        is_watched: whether its watchdog has noticed that nothing happens.
    """
    made = rank(number, step=last, path=path, stuck_ns=stuck_ns, **parts)
    events = [(i, i * 100 * MS + 80 * MS, "all_reduce") for i in range(last)]
    if path == "backward/allreduce":
        events.append((last, made.duration_ns - stuck_ns, "all_reduce"))
    made = replace(made, collectives=collectives(*events))
    return stalled(made, events[-1][0]) if is_watched and stuck_ns > S else made


def stalled(of: RankData, *enqueued: int, stacks: tuple[tuple[str, str], ...] = ()) -> RankData:
    """The same, with what its watchdog saw: the last operation of each group."""
    groups = of.collectives.groups or (group((0, 1)),)
    progress = tuple(
        GroupProgress(one.name, last, None, None, "all_reduce")
        for one, last in zip(groups, enqueued, strict=True)
    )
    since_ns = of.end.path_begin_ns
    stall = Stall(
        since_ns=since_ns,
        noticed_ns=since_ns + 30 * S,
        limit_ns=30 * S,
        step=41,
        stacks=stacks,
        groups=progress,
    )
    return replace(of, stalls=(stall,))


def looked(of: RankData, call: tuple[str, int | None] | None) -> RankData:
    """The same, with what its watchdog saw: the function of torch.distributed that it is in."""
    stall = Stall(
        since_ns=of.duration_ns - 31 * S,
        noticed_ns=of.duration_ns - S,
        limit_ns=30 * S,
        step=-1,
        stacks=(("MainThread", "forward" if call is None else call[0]),),
        call=None if call is None else DistributedCall(*call),
    )
    return replace(of, stalls=(stall,))


def starting(number: int) -> RankData:
    """A rank that has begun no step."""
    made = rank(number, step=0, path=None, at_ns=60 * S)
    return replace(made, end=replace(made.end, step=None))
