# SPDX-License-Identifier: Apache-2.0
"""The section that says what changes could save."""

from __future__ import annotations

from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import subject
from pyinstrument_gpu.analysis.savings import Limit, ReplayedSaving
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class Saving:
    """What a run would gain without one thing. Times are per step.

    Attributes:
        about: what is taken out: a wait at a line, the wait for data, a phase's launches, ...
        calls: how often it happens.
        time_ns: what the host spends on it.
        low_ns, high_ns: what the run, replayed without it, leaves open.
        likely_ns: the likeliest in between; unknown where the range is too wide to tell.
        at_most_ns: no change of this kind saves more; unknown where nothing proves a limit.
        p10_ns, p90_ns: how the likely saving differs from step to step.
        of: what it is a share of: "step", or "elapsed time" with all between steps.
    """

    about: str
    calls: float
    time_ns: float
    low_ns: float
    likely_ns: float | None
    high_ns: float
    at_most_ns: float | None
    p10_ns: float | None
    p90_ns: float | None
    of: str


@dataclass(frozen=True)
class Savings:
    """What changes could save.

    Attributes:
        steps: over how many steps the times are taken.
        replayed: how many of them were replayed.
        step_ns: the mean time of a step.
        elapsed_ns: the same with all between steps.
        busy_ns: what the device is proven to work in a step.
        rows: the largest sure saving first.
    """

    steps: int
    replayed: int
    step_ns: float | None
    elapsed_ns: float | None
    busy_ns: float | None
    rows: tuple[Saving, ...]


def savings(run: Run) -> Savings | None:
    """None where neither the device nor syncs were timed."""
    about = analysis.of(run)
    if not about.knows_waits:
        return None
    found = about.savings
    return Savings(
        steps=found.steps,
        replayed=found.replayed,
        step_ns=found.step_ns if found.steps else None,
        elapsed_ns=found.elapsed_ns if found.steps else None,
        busy_ns=found.busy_ns,
        rows=tuple(_row(run, row) for row in found.rows),
    )


def _row(run: Run, row: ReplayedSaving) -> Saving:
    p10_ns, p90_ns = row.spread_ns if row.is_told else (None, None)
    return Saving(
        about=subject(run, row),
        calls=row.calls,
        time_ns=row.time_ns,
        low_ns=row.low_ns,
        likely_ns=row.likely_ns if row.is_told else None,
        high_ns=row.high_ns,
        at_most_ns=None if row.limit == Limit.NONE else row.at_most_ns,
        p10_ns=p10_ns,
        p90_ns=p90_ns,
        of=row.of,
    )
