# SPDX-License-Identifier: Apache-2.0
"""Jobs made by hand, with what is found about them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.job import analysis
from pyinstrument_gpu.job.findings import (
    OUTSIDE_PHASES,
    STEP,
    CollectiveUse,
    LateStart,
    Pattern,
    PhaseAcrossRanks,
    Pipeline,
    Straggler,
    Stragglers,
)
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.report import JobDocument, job_document_of

MS = 1_000_000
PATHS = ("data", "forward", "backward")
BALANCED = Stragglers(Pattern.BALANCED, None, 0.1 * MS, 0.001, 99, True)


class MadeJob(NamedTuple):
    """A job, and what is found about it."""

    data: Job
    stragglers: Stragglers = BALANCED
    phases: tuple[PhaseAcrossRanks, ...] = ()
    collectives: tuple[CollectiveUse, ...] = ()
    step: PhaseAcrossRanks | None = None
    late_start: LateStart | None = None
    pipeline: Pipeline | None = None

    def document(self) -> JobDocument:
        vars(analysis.of(self.data)).update(zip(self._fields[1:], self[1:], strict=True))
        return job_document_of(self.data)


def rank_of(number: int, data_ns: int = 10 * MS, steps: int = 100, **changes: Any) -> RankData:
    """A rank whose steps take 100 ms, most of it in "backward", which waits for the others."""
    self_ns = np.empty((3, steps), np.int64)
    self_ns[:] = np.array([[data_ns], [20 * MS], [70 * MS - data_ns]])
    made: dict[str, Any] = {
        "rank": number,
        "file": f"job.rank{number}.gpurun",
        "environment": {
            "host": "box",
            "command": ["python", "-m", "pyinstrument_gpu", "run", "train.py"],
            "arguments": ["train.py"],
            "torch": "2.13.0",
        },
        "complete": True,
        "notes": (),
        "dropped": {"ring_full": 0},
        "duration_ns": 100 * MS * steps,
        "began_realtime_ns": 1_700_000_000_000_000_000,
        "steps": np.arange(steps),
        "steps_ended": steps,
        "step_begin_ns": 100 * MS * np.arange(steps),
        "step_ns": np.full(steps, 100 * MS),
        "paths": PATHS,
        "first_begin_ns": np.zeros((3, steps), np.int64),
        "last_end_ns": np.zeros((3, steps), np.int64),
        "self_ns": self_ns,
        "device_ns": np.full((3, steps), -1),
        "collectives": Collectives(was_read=True),
    }
    return RankData(**(made | changes))


def phase_of(path: str, **changes: Any) -> PhaseAcrossRanks:
    even = PhaseAcrossRanks(
        path=path,
        ranks=4,
        median_ns=20.0 * MS,
        low_ns=19.0 * MS,
        high_ns=21.0 * MS,
        slowest_rank=0,
        work_ns=21.0 * MS,
        distance_ns=1.0 * MS,
        is_significant=False,
        imbalance_ns=0.1 * MS,
        waiting_ns=None,
        pattern=Pattern.BALANCED,
    )
    return replace(even, **changes)


def use_of(**changes: Any) -> CollectiveUse:
    """What is known of one with gloo."""
    use = CollectiveUse(
        group="default_pg",
        operation="all_reduce",
        path="backward",
        count=300,
        bytes=300 << 20,
    )
    return replace(use, **changes)


def balanced(ranks: int = 4) -> MadeJob:
    data = Job(tuple(rank_of(number) for number in range(ranks)), ranks)
    return MadeJob(data, phases=tuple(map(phase_of, PATHS)))


def one_late() -> MadeJob:
    """Rank 3 of 4 loads 30 ms longer than the others, who wait for it in "backward"."""
    ranks = tuple(rank_of(number, (40 if number == 3 else 10) * MS) for number in range(4))
    late = Straggler(
        3,
        Pattern.ALWAYS,
        "data",
        96,
        29.5 * MS,
        0.98,
        1e-12,
        (3,),
        line="augment (train.py:44)",
        line_ns=28.7 * MS,
    )
    slow: dict[str, Any] = {
        "slowest_rank": 3,
        "work_ns": 40.0 * MS,
        "high_ns": 40.0 * MS,
        "median_ns": 10.0 * MS,
    }
    slow |= {"distance_ns": 30.0 * MS, "is_significant": True, "imbalance_ns": 29.0 * MS}
    slow |= {"pattern": Pattern.ALWAYS, "low_ns": 10.0 * MS}
    return MadeJob(
        Job(ranks, 4, job_id="7"),
        Stragglers(Pattern.ALWAYS, late, 29.0 * MS, 0.29, 99, True),
        (
            phase_of("data", **slow),
            phase_of("forward"),
            phase_of("backward", waiting_ns=30.0 * MS),
            phase_of(OUTSIDE_PHASES, imbalance_ns=None),
        ),
        (
            use_of(
                transfer_ns=2.0 * MS,
                waiting_ns=28.0 * MS,
                bytes_per_s=5e8,
                exposed_ns=30.0 * MS,
                last_rank=3,
                last_share=0.96,
            ),
        ),
        phase_of(STEP, **slow),
        LateStart(2, 1_500.0 * MS, False),
    )


def some_steps() -> MadeJob:
    late = Straggler(1, Pattern.SOME_STEPS, None, 7, 4.0 * MS, 0.5, None, (1,))
    return balanced()._replace(
        stragglers=Stragglers(Pattern.SOME_STEPS, late, 5.0 * MS, 0.05, 99, False)
    )


def in_turn() -> MadeJob:
    stragglers = Stragglers(Pattern.IN_TURN, None, 8.0 * MS, 0.08, 99, True)
    slow = {"is_significant": True, "imbalance_ns": 7.0 * MS, "pattern": Pattern.IN_TURN}
    return balanced()._replace(
        stragglers=stragglers, phases=(phase_of("data", **slow), phase_of("forward"))
    )


def unknown() -> MadeJob:
    reason = "no step ended on all ranks."
    empty = rank_of(0, steps=0), rank_of(1, steps=0)
    return MadeJob(Job(empty, 2), Stragglers(Pattern.UNKNOWN, None, None, None, 0, False, reason))


def broken() -> MadeJob:
    """Of 5 ranks two are missing, one was killed and two stand still."""
    stall = Stall(
        since_ns=9_000 * MS,
        noticed_ns=41_000 * MS,
        limit_ns=30_000 * MS,
        step=90,
        paths=((0, "backward"),),
    )
    over = structs.replace(stall, since_ns=1_000 * MS, noticed_ns=32_000 * MS, ended_ns=33_000 * MS)
    ranks = (
        rank_of(0, stalls=(over, stall), notes=("cut off",), dropped={"ring_full": 5}),
        rank_of(1, stalls=(stall,), notes=("cut off",)),
        rank_of(2, steps=90, complete=False, collectives=Collectives()),
    )
    missing = {3: "there is no run file of it", 4: "there is no run file of it"}
    notes = ("the ranks ran different code revisions",)
    return MadeJob(Job(ranks, 5, "7", missing, notes), replace(BALANCED, is_by_arrivals=False))


def many(count: int = 1024, late: int = 700) -> MadeJob:
    """So many ranks, of which one is late."""
    found = one_late()
    ranks = tuple(
        rank_of(number, (40 if number == late else 10) * MS, steps=20) for number in range(count)
    )
    assert found.stragglers.straggler is not None
    straggler = replace(found.stragglers.straggler, rank=late, ranks=(late,))
    return MadeJob(
        Job(ranks, count),
        replace(found.stragglers, straggler=straggler),
        (replace(found.phases[0], slowest_rank=late, ranks=count), *found.phases[1:]),
    )


JOBS: Mapping[str, Callable[[], MadeJob]] = {
    "balanced": balanced,
    "one late": one_late,
    "some steps": some_steps,
    "in turn": in_turn,
    "unknown": unknown,
    "broken": broken,
    "many": lambda: many(64, 50),
    "nothing": lambda: MadeJob(Job((), 2, missing={0: "gone", 1: "gone"})),
}
