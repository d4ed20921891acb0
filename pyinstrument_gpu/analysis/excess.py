# SPDX-License-Identifier: Apache-2.0
"""Why slow steps were slow: what each took too long, divided among causes and a rest.

A step is compared with the median of its *kind*. It is slow if it is above that by more than noise.
Its excess over the median is divided among the causes that aspects give (core/cause.py): each gets
what it took in this step beyond what it takes in usual ones of the kind, in the order of their
precedence (`_turn`), no moment twice, and all of them together at most the excess. What is left is
not explained, or not looked at where an essential cause is not known. All numbers are whole
nanoseconds, so the parts add up to the excess exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import covered_before, joined
from pyinstrument_gpu.analysis.slow_places import UNKNOWN, slow_places
from pyinstrument_gpu.analysis.step_kinds import StepKinds, step_kinds
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, places_in
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.cause import Cause, Precedence
from pyinstrument_gpu.core.run import Run

NOT_LOOKED_AT = "not_looked_at"
_NOT_LOOKED_AT = Cause(
    name=NOT_LOOKED_AT,
    words="no cause recorded",
    remedy="",
    precedence=Precedence.REST,
    is_advised=False,
)
_MOST_PIECES = 4
"""For each step and interval: a file of nonsense must not fill the memory."""


@dataclass(frozen=True, eq=False)
class Excess:
    """The slow steps of a run, of those in its history, and what each took too long.

    Attributes:
        causes: all that were looked for, in the order in which they have their parts; and last what
            is left of steps in which an essential one was not looked for, if there is any.
        steps: the slow ones, as rows of `Run.steps.array`.
        typical_ns: of each what its kind takes: the median.
        parts_ns: of its excess, what each cause explains. Shape (causes, steps).
        least_ns, most_ns: the same if all other causes that were at work then went first, and if
            this one did.
        is_known: whether it is known if the cause was at work in the step. Same shape.
        places: the phase in which each was slow: see `slow_places`.
        compared: how many steps there were that have something to be compared with.
        elapsed_ns: from the begin of the first step in the history to the end of the last.
    """

    causes: tuple[Cause, ...]
    steps: NDArray[np.void]
    typical_ns: NDArray[np.int64]
    parts_ns: NDArray[np.int64]
    least_ns: NDArray[np.int64]
    most_ns: NDArray[np.int64]
    is_known: NDArray[np.bool_]
    places: NDArray[np.int64]
    compared: int
    elapsed_ns: int

    @cached_property
    def excess_ns(self) -> NDArray[np.int64]:
        """The time of each step above its kind's median."""
        excess_ns: NDArray[np.int64] = durations_ns_of(self.steps) - self.typical_ns
        return excess_ns

    @cached_property
    def unexplained_ns(self) -> NDArray[np.int64]:
        """The part of it that no cause explains, where causes of the step were recorded."""
        rest_ns: NDArray[np.int64] = self.excess_ns - self.parts_ns.sum(axis=0)
        return rest_ns

    @cached_property
    def main_cause(self) -> NDArray[np.int64]:
        """The cause that explains most of each step, as an index into `causes`; -1 where more than
        any explains is unexplained."""
        if not self.causes:
            return np.full(len(self.steps), -1)
        largest = self.parts_ns.argmax(axis=0)
        explains = self.parts_ns.max(axis=0) >= np.maximum(self.unexplained_ns, 1)
        return np.where(explains, largest, -1)

    def note(self, row: int, place: int) -> str | None:
        """Return the note of a cause on its longest interval in one of the slow steps."""
        cause, step = self.causes[row], self.steps[place]
        own = cause.intervals
        begins_ns = np.maximum(own["begin_ns"], step["begin_ns"])
        inside_ns = np.minimum(own["end_ns"], step["end_ns"]) - begins_ns
        if not len(own) or inside_ns.max() <= 0:
            return None
        note = int(own["note"][inside_ns.argmax()])
        return cause.notes[note] if 0 <= note < len(cause.notes) else None


def excess(run: Run) -> Excess:
    """The slow steps of a run. Linear in its steps and in what causes give, but for sorting."""
    kinds = step_kinds(run)
    found = divided(kinds, [one for aspect in aspects() for one in aspect.causes(run)])
    return replace(found, places=slow_places(run, kinds.steps, kinds.is_slow))


def divided(kinds: StepKinds, causes: Sequence[Cause]) -> Excess:
    """The excess of slow steps, divided among these causes; not where they were slow."""
    steps, is_slow = kinds.steps, kinds.is_slow
    causes = sorted(causes, key=_turn)
    slow = steps[is_slow]
    elapsed_ns = int(steps["end_ns"].max() - steps["begin_ns"].min()) if len(steps) else 0
    # The gate's tests ask again and again of steps of which none is slow.
    sought = causes if len(slow) else ()
    own_ns = _own_times_ns(sought, steps)
    parts_ns = np.zeros((len(causes), len(slow)), np.int64)
    gross_ns, is_known = parts_ns.copy(), np.zeros(parts_ns.shape, dtype=bool)
    left_ns = durations_ns_of(slow) - kinds.typical_ns[is_slow]
    whole_ns, busy_ns = left_ns.copy(), np.zeros_like(left_ns)
    for row, cause in enumerate(sought):
        known = _are_known(cause, steps)
        amounts_ns = _amounts_ns(cause, steps)
        is_known[row] = known[is_slow]
        more_ns = kinds.above_usual_ns(own_ns[row] + amounts_ns, known)
        if cause.precedence == Precedence.REST and not len(cause.intervals):
            more_ns = np.maximum(more_ns - busy_ns, 0)
        parts_ns[row] = np.minimum(more_ns, left_ns)
        left_ns -= parts_ns[row]
        if not cause.is_idle:
            busy_ns += parts_ns[row]
        if cause.precedence == Precedence.REST:
            continue  # it leaves all that others may explain to them
        alone_ns = _covered_ns(cause, steps) + amounts_ns
        gross_ns[row] = np.minimum(kinds.above_usual_ns(alone_ns, known), whole_ns)
    gross_ns = np.maximum(gross_ns, parts_ns)
    of_others_ns = gross_ns.sum(axis=0) - gross_ns
    least_ns = np.clip(whole_ns - of_others_ns, 0, parts_ns)
    essential = [row for row, cause in enumerate(sought) if cause.is_essential]
    unseen_ns = np.where(is_known[essential].all(axis=0), 0, left_ns)
    if unseen_ns.any():
        causes = [*causes, _NOT_LOOKED_AT]
        parts_ns, least_ns, gross_ns = (
            np.vstack([times_ns, unseen_ns]) for times_ns in (parts_ns, least_ns, gross_ns)
        )
        is_known = np.vstack([is_known, np.ones(len(slow), dtype=bool)])
    return Excess(
        causes=tuple(causes),
        steps=slow,
        typical_ns=kinds.typical_ns[is_slow],
        parts_ns=parts_ns,
        least_ns=least_ns,
        most_ns=gross_ns,
        is_known=is_known,
        places=np.full(len(slow), UNKNOWN),
        compared=int(np.count_nonzero(kinds.is_compared)),
        elapsed_ns=elapsed_ns,
    )


def _turn(cause: Cause) -> tuple[bool, bool, Precedence]:
    """Return whose turn it is to have a part of an excess. What is known to the moment comes before
    sums: the waits inside of an evaluation would not have been without it. But waits for somebody
    else come behind all of them, as something may have held up the wait itself."""
    is_first, has_moments = cause.precedence <= Precedence.ACT, bool(len(cause.intervals))
    return not is_first, is_first and not has_moments, cause.precedence


def _are_known(cause: Cause, steps: NDArray[np.void]) -> NDArray[np.bool_]:
    if cause.known is None:
        return np.ones(len(steps), dtype=bool)
    return np.isin(steps["index"], cause.known)


def _amounts_ns(cause: Cause, steps: NDArray[np.void]) -> NDArray[np.int64]:
    places = places_in(steps["index"], cause.amounts["step"])
    sums_ns = np.zeros(len(steps), np.int64)
    np.add.at(sums_ns, places[places >= 0], cause.amounts["time_ns"][places >= 0])
    return np.maximum(sums_ns, 0)


def _in_steps(
    cause: Cause, steps: NDArray[np.void]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the intervals of a cause, cut at the boundaries of steps: the position of the step,
    begin and end of each piece. Only what held up the step's own thread."""
    own = cause.intervals
    chosen = (own["end_ns"] > own["begin_ns"]) & (
        (own["thread"] < 0) | np.isin(own["thread"], distinct(steps["thread"]))
    )
    begins_ns, ends_ns, threads = (own[name][chosen] for name in ("begin_ns", "end_ns", "thread"))
    first, counts = _steps_of(steps, begins_ns, ends_ns)
    if counts.sum() > _MOST_PIECES * (len(steps) + len(counts)):
        # So many steps in so many intervals that they overlap a lot: their union does not.
        begins_ns, ends_ns = joined(begins_ns, ends_ns)
        threads = np.full(len(begins_ns), -1)
        first, counts = _steps_of(steps, begins_ns, ends_ns)
    before = np.cumsum(counts) - counts
    places = np.repeat(first - before, counts) + np.arange(counts.sum())
    begins_ns = np.maximum(np.repeat(begins_ns, counts), steps["begin_ns"][places])
    ends_ns = np.minimum(np.repeat(ends_ns, counts), steps["end_ns"][places])
    threads = np.repeat(threads, counts)
    is_its = (threads < 0) | (threads == steps["thread"][places])
    return places[is_its], begins_ns[is_its], ends_ns[is_its]


def _steps_of(
    steps: NDArray[np.void], begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the position of the first step that each interval lies in, and in how many it does."""
    first = np.searchsorted(steps["end_ns"], begins_ns, side="right")
    behind = np.searchsorted(steps["begin_ns"], ends_ns, side="left")
    return first, np.maximum(behind - first, 0)


def _covered_ns(cause: Cause, steps: NDArray[np.void]) -> NDArray[np.int64]:
    """Return how much of each step the intervals of one cause cover."""
    _, begins_ns, ends_ns = _in_steps(cause, steps)
    covered = joined(begins_ns, ends_ns) if len(begins_ns) else (begins_ns, ends_ns)
    covered_ns: NDArray[np.int64] = covered_before(*covered, steps["end_ns"])
    return covered_ns - covered_before(*covered, steps["begin_ns"])


def _own_times_ns(causes: Sequence[Cause], steps: NDArray[np.void]) -> NDArray[np.int64]:
    """Return how much of each step belongs to the intervals of each cause, each moment to one of
    them. Shape (causes, steps)."""
    own_ns = np.zeros((len(causes), len(steps)), np.int64)
    pieces = [_in_steps(cause, steps) for cause in causes]
    if not pieces:
        return own_ns
    places, begins_ns, ends_ns = map(np.concatenate, zip(*pieces, strict=True))
    rows = np.repeat(np.arange(len(causes)), [len(piece[0]) for piece in pieces])
    order = np.lexsort((begins_ns, places))
    rows, places, begins_ns, ends_ns = (
        column[order] for column in (rows, places, begins_ns, ends_ns)
    )
    # Steps do not overlap, so pieces that do are of the same one. Most overlap with no other.
    latest_ns = np.maximum.accumulate(ends_ns)
    is_first = np.append(True, begins_ns[1:] >= latest_ns[:-1])
    bounds = np.append(np.flatnonzero(is_first), len(rows))
    alone = bounds[:-1][np.diff(bounds) == 1]
    np.add.at(own_ns, (rows[alone], places[alone]), (ends_ns - begins_ns)[alone])
    for first in np.flatnonzero(np.diff(bounds) > 1).tolist():
        some = slice(bounds[first], bounds[first + 1])
        columns = (rows[some].tolist(), begins_ns[some].tolist(), ends_ns[some].tolist())
        for row, time_ns in _shared(causes, *columns):
            own_ns[row, places[some.start]] += time_ns
    return own_ns


def _shared(
    causes: Sequence[Cause], rows: list[int], begins_ns: list[int], ends_ns: list[int]
) -> list[tuple[int, int]]:
    """Return pieces that overlap, by begin, as times that do not: whose each is, and how long."""
    found: list[tuple[int, int]] = []
    open_pieces: list[tuple[int, int, int, int]] = []
    now_ns, count, following = begins_ns[0], len(rows), 0
    while following < count or open_pieces:
        while following < count and begins_ns[following] <= now_ns:
            row = rows[following]
            key = (causes[row].precedence, -begins_ns[following], row, ends_ns[following])
            heapq.heappush(open_pieces, key)
            following += 1
        next_ns = begins_ns[following] if following < count else max(ends_ns)
        while open_pieces and open_pieces[0][3] <= now_ns:
            heapq.heappop(open_pieces)
        if not open_pieces:
            now_ns = next_ns
            continue
        until_ns = min(open_pieces[0][3], next_ns)
        found.append((open_pieces[0][2], until_ns - now_ns))
        now_ns = until_ns
    return found
