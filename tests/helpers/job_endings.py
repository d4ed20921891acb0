# SPDX-License-Identifier: Apache-2.0
"""Ranks of which something is left, made by hand: steps of 100 ms, and the last one open."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.job.job import Job, RankData, RunEnd

MS = 1_000_000
S = 1000 * MS
STEP_NS = 100 * MS
BEGAN_NS = 500 * S
"""When the runs began, by the monotonic clock of their machine."""
BOOTED_NS = 1_700_000_000 * S
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
    begins_ns = np.arange(step) * STEP_NS
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
    closed = [Step(i, i * STEP_NS, (i + 1) * STEP_NS, None, 1, True, 0) for i in range(step)]
    last = Step(step, begin_ns, end_ns if is_ended else -1, None, 1, not is_cut_short, 0)
    if is_ended:
        closed.append(last)
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
        "steps": np.arange(step),
        "steps_ended": step,
        "step_begin_ns": begins_ns,
        "step_ns": np.full(step, STEP_NS),
        "paths": paths,
        "first_begin_ns": first_begin_ns.reshape(len(paths), step),
        "last_end_ns": first_begin_ns.reshape(len(paths), step) + MS,
        "self_ns": np.full((len(paths), step), MS),
        "device_ns": np.full((len(paths), step), -1),
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
