# SPDX-License-Identifier: Apache-2.0
"""Causes of slow steps. Aspects give them, and the analysis divides among them what slow steps took
too long (`analysis/excess.py`). It names none of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyinstrument_gpu.core.arrays import ArrayFields

INTERVAL_DTYPE = np.dtype(
    [("begin_ns", "<i8"), ("end_ns", "<i8"), ("thread", "<i8"), ("note", "<i8")]
)
"""A time in which a cause was at work, since the run began. `thread` is an index into
`Run.threads`, -1 where it held up all threads; `note` one into `Cause.notes`, -1 none."""

AMOUNT_DTYPE = np.dtype([("step", "<i8"), ("time_ns", "<i8")])
"""How long a cause was at work in the step with this index, where it is not known when."""

NOTED_DTYPE = np.dtype(
    [(name, "<i8") for name in ("begin_ns", "time_ns", "step", "thread", "kind", "note")]
)
"""An item of the log of causes. One with a step is a sum over that step; one without is a time on a
thread, an index into `Run.threads`, -1 if that has no phases or steps."""


def intervals_of(
    begins_ns: ArrayLike, ends_ns: ArrayLike, thread: ArrayLike = -1, note: ArrayLike = -1
) -> NDArray[np.void]:
    """Intervals of these columns."""
    begins_ns = np.asarray(begins_ns, dtype=np.int64)
    found = np.empty(len(begins_ns), INTERVAL_DTYPE)
    found["begin_ns"], found["end_ns"] = begins_ns, ends_ns
    found["thread"], found["note"] = thread, note
    return found


def amounts_of(steps: ArrayLike, times_ns: ArrayLike) -> NDArray[np.void]:
    """Amounts of these columns."""
    steps = np.asarray(steps, dtype=np.int64)
    found = np.empty(len(steps), AMOUNT_DTYPE)
    found["step"], found["time_ns"] = steps, times_ns
    return found


class Precedence(enum.IntEnum):
    """The order in which causes get a moment that several claim: the first of these has it."""

    PAUSE = 0
    """Something kept the thread from its work, whatever that was: a collection, another program."""
    ACT = 1
    """The program did something that it does not do in most steps: it compiled, it evaluated."""
    HINDRANCE = 2
    """The program did the same as ever, and it took longer: page faults, a clock that sank."""
    WAIT = 3
    """The program waited for somebody else: for a worker, a rank, a device."""
    REST = 4
    """Something is known of the step as a whole, and has what no other cause explains. What causes
    that are not idle have explained counts as a part of it."""


@dataclass(frozen=True, eq=False)
class Cause:
    """Something that may make steps slow, and when, or in which steps, it was at work.

    A cause that is at work in usual steps as well explains only what it takes more in slow ones, so
    it has to be given for all steps, not for slow ones alone. Steps that were profiled don't count.

    Attributes:
        name: its key in JSON and its label in Prometheus, such as "garbage_collection".
        words: the same in words, to follow "of which 3.1 s": "garbage collection".
        remedy: what to do about it, as an imperative without a full stop.
        precedence: whose a moment is that several causes claim. Of two with the same precedence it
            is that one's whose interval began last, as that lies within the other. Amounts come
            behind the intervals of pauses and acts, in the order of the table of aspects.
        intervals: in any order, and they may overlap (`INTERVAL_DTYPE`). Those of other threads
            than the step's, and parts outside of steps, are left out by whoever reads them.
        amounts: besides the intervals (`AMOUNT_DTYPE`). Several of one step add up, and explain at
            most what is left of its excess.
        known: the indices of the steps of which it is known whether it was at work in them; None
            for all. In a known step without an interval or amount it was not. Of the others nothing
            is known, and an excess that nothing explains may be its work.
        notes: words on single intervals, such as which worker was late.
        saves: which share of its time the remedy saves, at least and at most. The default says that
            it is not known: what is done elsewhere instead may take as long.
        is_advised: whether a report is to advise the remedy where it is worth it. False: the aspect
            has findings of its own, or the savings of the run have it.
        is_idle: whether the step's thread does not run meanwhile.
        is_essential: whether a slow step has been looked at only where this is known: what is left
            of its excess is not unexplained elsewhere, as this may have been it.
    """

    name: str
    words: str
    remedy: str
    precedence: Precedence
    intervals: NDArray[np.void] = field(default_factory=lambda: np.empty(0, INTERVAL_DTYPE))
    amounts: NDArray[np.void] = field(default_factory=lambda: np.empty(0, AMOUNT_DTYPE))
    known: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    saves: tuple[float, float] = (0.0, 1.0)
    is_advised: bool = True
    is_idle: bool = False
    is_essential: bool = False


@dataclass(frozen=True, eq=False)
class NotedCauses(ArrayFields):
    """The log of causes (`native.add_cause`), of which each aspect has its own kind.

    Attributes:
        items: in the order in which they were written (`NOTED_DTYPE`).
        since_ns: older ones may have made room.
        until_ns: what follows is damaged; None if nothing is.
    """

    items: NDArray[np.void] = field(default_factory=lambda: np.empty(0, NOTED_DTYPE))
    since_ns: int = 0
    until_ns: int | None = None

    def of_kind(self, kind: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """The intervals and the amounts of a kind. Notes are as they were written."""
        own = self.items[self.items["kind"] == kind]
        times, sums = own[own["step"] < 0], own[own["step"] >= 0]
        ends_ns = times["begin_ns"] + times["time_ns"]
        return (
            intervals_of(times["begin_ns"], ends_ns, times["thread"], times["note"]),
            amounts_of(sums["step"], sums["time_ns"]),
        )

    def known(self, steps: NDArray[np.void]) -> NDArray[np.int64] | None:
        """Return those of these steps of which the log is complete; None for all of them."""
        if not self.since_ns and self.until_ns is None:
            return None
        is_known = steps["begin_ns"] >= self.since_ns
        if self.until_ns is not None:
            is_known &= steps["end_ns"] <= self.until_ns
        known: NDArray[np.int64] = steps["index"][is_known]
        return known
