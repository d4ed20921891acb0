# SPDX-License-Identifier: Apache-2.0
"""Findings about the ranks of a job, as plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pyinstrument_gpu.analysis.contention import LARGE_SHARE

STEP = ""
"""The path of what is said of whole steps."""
OUTSIDE_PHASES = "/outside phases"
"""The path of what a step spends outside of phases. No phase has such a path."""
BETWEEN_STEPS = "/between steps"
"""The path of the time before a step, from the end of the one before."""
PROCESSOR = "/waiting for a processor"
"""Where the delay of a rank arises that has to wait for one."""
MOST_ROWS = 30
"""A table of phases, ranks or collectives shows at most so many."""


class Pattern(str, enum.Enum):
    """The pattern of which ranks others wait for."""

    BALANCED = "balanced"
    """None that stands out."""
    ALWAYS = "always"
    """The same one in most steps."""
    SOME_STEPS = "some steps"
    """The same one, in a few steps that stand out."""
    IN_TURN = "in turn"
    """Now one, now another, or several always. None is named."""
    UNKNOWN = "unknown"

    @property
    def is_of_one_rank(self) -> bool:
        """True if one rank is the cause."""
        return self in (Pattern.ALWAYS, Pattern.SOME_STEPS)


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for, or several that are slow together.

    Attributes:
        rank: its number; of several the lowest.
        pattern: ALWAYS or SOME_STEPS.
        path: the phase in which most of its delay arises, or `OUTSIDE_PHASES` or `BETWEEN_STEPS`,
            or `PROCESSOR`; None if it is slower everywhere, or if that is unknown.
        steps: number of steps in which it, or one of them, came last; of SOME_STEPS, and stood out.
        lateness_ns: by how much it is later than the second latest, on average over all steps.
        path_share: the part of the delay that arises in `path`.
        p_value: the chance of coming last so often if all ranks were alike; None if not tested.
        ranks: the numbers of all of them.
        host: the machine of which they are all ranks, if they are several.
        group: the process group of which they are, if they are several and not those of a machine.
        line: the function and line of the program in which the delay in `path` arises, by samples
            of the ranks' stacks; None if that is unknown.
        line_ns: how much longer it is there than the others, per step.
    """

    rank: int
    pattern: Pattern
    path: str | None
    steps: int
    lateness_ns: float
    path_share: float
    p_value: float | None
    ranks: tuple[int, ...] = ()
    host: str | None = None
    group: str | None = None
    line: str | None = None
    line_ns: float | None = None


@dataclass(frozen=True)
class LateStart:
    """A rank for which the others waited at the start.

    Attributes:
        rank: its number.
        lateness_ns: by how much it was later than the next one.
        began_late: whether it began to be recorded that much later; otherwise it took that much
            longer until it met the others, when the first process group was made or in their first
            collective operations.
    """

    rank: int
    lateness_ns: float
    began_late: bool


@dataclass(frozen=True)
class Stragglers:
    """The ranks that are waited for.

    Attributes:
        pattern: the whole job's.
        straggler: whom to look at; None if nobody can be named.
        loss_ns: what a step takes longer than if every rank were as the median (of two, as the
            quicker one), on average. If several are slow together, as the others.
        loss_share: the same as a share of `step_ns`.
        steps: number of steps that all ranks have and that were judged.
        is_by_arrivals: whether phases with collectives were split into work and waiting, or the
            waits on devices are known. If not, a rank that is slower in such a phase alone can't be
            seen.
        reason: why the pattern is unknown, in a sentence; None otherwise.
        left_out: the ranks that were not judged, because they have few of the steps that most have.
        step_ns: the mean of these steps with the time before each, of each the median rank's; None
            if none were judged.
        hint: in the pattern SOME_STEPS, who came last in the steps that stand out, if nobody can be
            named because these are so few that it may be chance.
        several: in the pattern IN_TURN, the ranks that are late at times or always.
        processor_share: which share of its time a step of the median rank waits for a processor (of
            an even number, of the lower one); None unknown.
    """

    pattern: Pattern
    straggler: Straggler | None
    loss_ns: float | None
    loss_share: float | None
    steps: int
    is_by_arrivals: bool
    reason: str | None = None
    left_out: tuple[int, ...] = ()
    step_ns: float | None = None
    hint: Straggler | None = None
    several: tuple[int, ...] = ()
    processor_share: float | None = None

    @property
    def is_busy(self) -> bool:
        """True if steps wait so much for a processor that times say more of the machine."""
        return (self.processor_share or 0.0) >= LARGE_SHARE


@dataclass(frozen=True)
class Pipeline:
    """The waits of ranks for sends and receives, as between the stages of a pipeline, per step.

    Attributes:
        limits: the ranks that the others wait for; empty if none stands out.
        work_ns: what these work themselves; if there are none, the rank that works longest.
        others_ns: what the median of the others works.
        waiting_ns: what a rank waits for sends and receives, on average: of a pipeline, its bubble
            and the transfers.
        waiting_share: the same as a share of `Stragglers.step_ns`.
        exposed_ns: what the ranks of `work_ns` wait for them: nothing of that is hidden.
    """

    limits: tuple[int, ...]
    work_ns: float
    others_ns: float
    waiting_ns: float
    waiting_share: float
    exposed_ns: float


@dataclass(frozen=True)
class PhaseAcrossRanks:
    """A phase over the ranks, in times per step.

    Attributes:
        path: the phase; `OUTSIDE_PHASES` and `BETWEEN_STEPS` for the rest of the time, `STEP` for
            all of it.
        ranks: how many ranks have it; for the others it counts as 0.
        median_ns: median over ranks of their mean host self time per step.
        low_ns, high_ns: the least and the most of any rank.
        slowest_rank: whose `work_ns` is largest.
        work_ns: of the slowest rank: own work per step, waits for other ranks taken out. If it is
            not known which part of the phase waits, what the quickest rank spends.
        distance_ns: by how much that is more than the median of the other ranks' own work.
        is_significant: whether that is more than what ranks differ by from step to step.
        imbalance_ns: the part of `Stragglers.loss_ns` that arises in this phase; None if that is
            not known.
        waiting_ns: median over ranks of what the phase waits for other ranks; None if not known.
        pattern: who is slowest in it.
    """

    path: str
    ranks: int
    median_ns: float
    low_ns: float
    high_ns: float
    slowest_rank: int
    work_ns: float
    distance_ns: float
    is_significant: bool
    imbalance_ns: float | None
    waiting_ns: float | None
    pattern: Pattern


@dataclass(frozen=True)
class CollectiveUse:
    """The operations of one kind of one process group in one phase.

    Attributes:
        group: description of the process group.
        operation: such as "all_reduce".
        path: the phase in which they were asked for; None outside phases, or if unknown.
        count: of operations per rank that were matched on all ranks of the group.
        bytes: of one rank's operations together.
        transfer_ns: at most what moving the data took per operation; None if durations are not
            known, as with gloo.
        waiting_ns: what a rank waited for the others per operation, on average; None as well. Where
            only creation times are known and all ranks share one machine, how far apart the ranks
            asked for it.
        bytes_per_s: bandwidth, from bytes and `transfer_ns`.
        exposed_ns: how much of the operations' time the step's thread or compute stream waited for,
            per step; None if that is unknown.
        last_rank: who most often asked for it last; None if that is unknown.
        last_share: in how many of the operations.
    """

    group: str
    operation: str
    path: str | None
    count: int
    bytes: int
    transfer_ns: float | None = None
    waiting_ns: float | None = None
    bytes_per_s: float | None = None
    exposed_ns: float | None = None
    last_rank: int | None = None
    last_share: float | None = None


def where_text(path: str) -> str:
    """Return where time is spent, in words: "in data", "outside phases", "between steps"."""
    return path[1:] if path in (OUTSIDE_PHASES, BETWEEN_STEPS, PROCESSOR) else f"in {path}"


def phase_text(path: str) -> str:
    """Return the name of a phase in tables; what is no phase stands in parentheses."""
    if path == STEP:
        return "step"
    return f"({path[1:]})" if path in (OUTSIDE_PHASES, BETWEEN_STEPS) else path
