# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together, simulated: what each of them records, and what is true of them.

All ranks do the phases of `WORK_NS` in each step. In "backward" they ask for `buckets` all-reduces
as they go, which are done once all ranks have asked, one after the other, and the phase ends when
the last is. Each rank has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.job.job import Job, RankData, RankWaits

MS = 1_000_000
WORK_NS = {"data": 20 * MS, "forward": 60 * MS, "backward": 100 * MS, "optimizer": 20 * MS}
"""What an ordinary rank does in each phase."""
_WAITING = "backward"
_REST_NS = 1 * MS
"""Of each step outside of phases, and between two steps."""
_TRANSFER_NS = 1 * MS


@dataclass(frozen=True)
class Slow:
    """One rank that is slower.

    Attributes:
        rank: its number.
        factor: by phase, how many times as long it works.
        extra_ns: by phase, how much longer.
        every: in every so-manieth step; 1 always.
        since: from which step on.
        starts_ns: how much later than the others it begins;
        prepares_ns: how much longer it takes from there to its first collective operation.
    """

    rank: int
    factor: Mapping[str, float] = field(default_factory=dict)
    extra_ns: Mapping[str, int] = field(default_factory=dict)
    every: int = 1
    since: int = 0
    starts_ns: int = 0
    prepares_ns: int = 0


def simulated_job(
    ranks: int,
    seed: int,
    *slow: Slow,
    steps: int = 300,
    noise: float = 0.01,
    hiccups: float = 0.0,
    hiccup_ns: int = 50 * MS,
    buckets: int = 3,
    has_arrivals: bool = True,
    has_durations: bool = False,
    is_turning: bool = False,
    work_ns: Mapping[str, int] = WORK_NS,
    blocking: int = 0,
    group_size: int = 0,
    ranks_per_host: int = 8,
) -> Job:
    """A job.

    Args:
        noise: standard deviation of each phase of each rank and step, as a share.
        hiccups: in how many of its phases a rank is interrupted; for `hiccup_ns` on average.
        has_arrivals: whether the collective operations were recorded, by gloo;
        has_durations: by NCCL with timing, on devices that are never behind.
        is_turning: in each step another rank is that of the first `Slow`.
        blocking: so many all-gathers in "forward", for each of which the host waits. The work in
            the phase is evenly before each, but the extra of a `Slow` before the first.
        group_size: so many ranks each are a process group "tp", and these operations theirs.
    """
    rng = np.random.default_rng([seed, ranks, steps])
    paths = list(work_ns)
    shape = (len(paths), ranks, steps)
    usual_ns = np.array([work_ns[path] for path in paths], float)[:, None, None]
    own_ns = usual_ns * np.exp(noise * rng.standard_normal(shape))
    own_ns += np.where(rng.random(shape) < hiccups, rng.exponential(hiccup_ns, shape), 0)
    even_ns = own_ns[paths.index("forward")].copy() if blocking else own_ns[0]
    blocked = Blocked(blocking, group_size or ranks, even_ns)
    for one in slow:
        for row, path in enumerate(paths):
            number = np.arange(steps)
            when = number[(number % one.every == one.every - 1) & (number >= one.since)]
            who = (when // one.every) % ranks if is_turning else np.full(len(when), one.rank)
            chosen = (row, who, when)
            own_ns[chosen] *= one.factor.get(path, 1.0)
            own_ns[chosen] += one.extra_ns.get(path, 0)
    job = _recorded(own_ns, paths, rng, slow, buckets, has_arrivals, has_durations, blocked)
    hosts = [{"host": f"host {rank.rank // ranks_per_host}"} for rank in job.ranks]
    moved = [
        replace(rank, environment={**rank.environment, **host})
        for rank, host in zip(job.ranks, hosts, strict=True)
    ]
    return Job(tuple(moved), ranks)


class Blocked(NamedTuple):
    """Operations for which hosts wait as a phase goes on: how many, of groups of how many ranks,
    and by rank and step the work that is evenly before each. The rest is before the first."""

    number: int
    group_size: int
    even_ns: NDArray[np.float64]

    def end_ns(
        self,
        now_ns: NDArray[np.float64],
        work_ns: NDArray[np.float64],
        step: int,
        asked_ns: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When the ranks are through, and what each has waited. Fills in when they asked."""
        waited_ns = np.zeros(len(now_ns))
        even_ns = self.even_ns[:, step] / self.number
        for place in range(self.number):
            now_ns = now_ns + even_ns + (0 if place else work_ns - self.even_ns[:, step])
            asked_ns[step, place] = now_ns
            groups = now_ns.reshape(-1, self.group_size)
            done_ns = (groups * 0 + groups.max(axis=1, keepdims=True)).reshape(-1) + _TRANSFER_NS
            waited_ns += done_ns - now_ns
            now_ns = done_ns
        return now_ns, waited_ns


def _recorded(
    own_ns: NDArray[np.float64],
    paths: list[str],
    rng: np.random.Generator,
    slow: tuple[Slow, ...],
    buckets: int,
    has_arrivals: bool,
    has_durations: bool,
    blocked: Blocked,
) -> Job:
    _, ranks, steps = own_ns.shape
    now_ns = np.abs(rng.normal(0, 5 * MS, ranks))
    began_ns = now_ns.copy()
    for one in slow:
        now_ns[one.rank] += one.starts_ns
        began_ns[one.rank] += one.starts_ns
    begins_ns, ends_ns = np.empty(own_ns.shape), np.empty(own_ns.shape)
    step_begin_ns, step_end_ns = np.empty((ranks, steps)), np.empty((ranks, steps))
    asked_ns, done_ns = np.empty((steps, buckets, ranks)), np.empty((steps, buckets))
    waited_ns = np.zeros((len(paths) + 2, ranks, steps))
    blocking_ns = np.empty((steps, blocked.number, ranks))
    # Making the model: its weights are sent to all.
    now_ns += 50 * MS * np.exp(0.05 * rng.standard_normal(ranks))
    for one in slow:
        now_ns[one.rank] += one.prepares_ns
    first_ns = now_ns.copy()
    now_ns = np.full(ranks, now_ns.max() + 5 * MS) + rng.exponential(0.05 * MS, ranks)
    second_ns = now_ns.copy()
    for step in range(steps):
        now_ns += _REST_NS
        step_begin_ns[:, step] = now_ns
        for row, path in enumerate(paths):
            begins_ns[row, :, step] = now_ns
            if path == _WAITING:
                free_ns = 0.0
                for bucket in range(buckets):
                    share = (bucket + 1) / buckets
                    asked_ns[step, bucket] = now_ns + own_ns[row, :, step] * share
                    free_ns = max(free_ns, asked_ns[step, bucket].max()) + _TRANSFER_NS
                    done_ns[step, bucket] = free_ns
                now_ns = free_ns + rng.exponential(0.05 * MS, ranks)
            elif path == "forward" and blocked.number:
                now_ns, waited_ns[row, :, step] = blocked.end_ns(
                    now_ns, own_ns[row, :, step], step, blocking_ns
                )
            else:
                now_ns = now_ns + own_ns[row, :, step]
            ends_ns[row, :, step] = now_ns
        now_ns += _REST_NS
        step_end_ns[:, step] = now_ns
    data = []
    group = ProcessGroup("0", "default_pg", tuple(range(ranks)), "gloo")
    if has_durations:
        group = ProcessGroup("0", "default_pg", tuple(range(ranks)), "nccl")
    for rank in range(ranks):
        zero_ns = began_ns[rank]

        def times(of_all: NDArray[np.float64], zero_ns: float = zero_ns) -> NDArray[np.int64]:
            return np.rint(of_all - zero_ns).astype(np.int64)

        begin, end = times(begins_ns[:, rank]), times(ends_ns[:, rank])
        step_begin, step_end = times(step_begin_ns[rank]), times(step_end_ns[rank])
        events = np.zeros(2 + steps * buckets, COLLECTIVE_DTYPE)
        for column in ("started_ns", "ended_ns", "duration_ns"):
            events[column] = -1
        created = np.append([first_ns[rank], second_ns[rank]], asked_ns[:, :, rank].reshape(-1))
        events["created_ns"] = times(created)
        events["sequence"] = np.arange(len(events))
        events["bytes"] = 4_000_000
        if has_durations:
            ended = np.append([first_ns.max(), second_ns.max()], done_ns.reshape(-1))
            events["duration_ns"] = np.rint(ended - created).astype(np.int64)
            events["ended_ns"] = times(ended)
        asked = np.zeros(steps * blocked.number, COLLECTIVE_DTYPE)
        for column in ("started_ns", "ended_ns", "duration_ns"):
            asked[column] = -1
        asked["created_ns"] = times(blocking_ns[:, :, rank].reshape(-1))
        asked["sequence"] = np.arange(len(asked))
        asked["group"] = 1
        events = np.concatenate([events, asked])
        events = events[np.argsort(events["created_ns"], kind="stable")]
        first = rank // blocked.group_size * blocked.group_size
        members = tuple(range(first, first + blocked.group_size))
        tp = ProcessGroup(f"tp {first}", "tp", members, group.backend)
        collectives = Collectives((group, tp), ("all_reduce",), events, was_read=True)
        waits = RankWaits(
            since_ns=0,
            total_ns=np.rint(waited_ns[:, rank]).astype(np.int64),
            p2p_ns=np.zeros(steps, np.int64),
            collectives=np.where(waited_ns[:, rank].any(axis=1), steps * blocked.number, 0),
        )
        data.append(
            RankData(
                rank=rank,
                file=None,
                environment={
                    "rank": rank,
                    "world_size": ranks,
                    "gpus": ["simulated"] if has_durations else [],
                },
                complete=True,
                notes=(),
                dropped={},
                duration_ns=int(step_end[-1]) + MS,
                began_realtime_ns=None,
                steps=np.arange(steps),
                steps_ended=steps,
                step_begin_ns=step_begin,
                step_ns=step_end - step_begin,
                paths=tuple(paths),
                first_begin_ns=begin,
                last_end_ns=end,
                self_ns=end - begin,
                device_ns=np.broadcast_to(np.int64(-1), begin.shape),
                collectives=collectives if has_arrivals or has_durations else Collectives(),
                waits=waits if has_arrivals else None,
            )
        )
    return Job(tuple(data), ranks)


def run_of_rank(rank: RankData) -> Run:
    """The run that such data is kept of, in which each phase is called once per step; of one that
    was looked at for waits, and has none."""
    assert rank.waits is None or not rank.waits.total_ns.any()
    since_ns = -1 if rank.waits is None else rank.waits.since_ns
    steps = np.zeros(len(rank.steps), STEP_DTYPE)
    steps["index"], steps["begin_ns"] = rank.steps, rank.step_begin_ns
    steps["end_ns"] = rank.step_begin_ns + rank.step_ns
    steps["samples"], steps["items"], steps["complete"] = np.nan, 1, True
    spans = np.zeros(rank.self_ns.size, SPAN_DTYPE)
    spans["host_begin_ns"] = rank.first_begin_ns.T.reshape(-1)
    spans["host_end_ns"] = rank.last_end_ns.T.reshape(-1)
    spans["path"] = spans["phase"] = np.tile(np.arange(len(rank.paths)), len(steps))
    spans["step"] = np.repeat(rank.steps, len(rank.paths))
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        spans[column] = -1
    spans["flags"] = SpanFlag.STEP_THREAD
    return Run(
        names=rank.paths,
        path_parents=[-1] * len(rank.paths),
        path_names=range(len(rank.paths)),
        threads=[Thread(11, "MainThread")],
        spans=spans,
        span_self_ns=rank.self_ns.T.reshape(-1),
        steps=Steps(steps),
        environment={**rank.environment, "run_id": f"{rank.rank:016x}"},
        duration_ns=rank.duration_ns,
        collectives=replace(rank.collectives, waits_since_ns=since_ns),
    )
