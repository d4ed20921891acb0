# SPDX-License-Identifier: Apache-2.0
"""Trends: whether the step takes longer and longer over the run, or has changed for good.

The steps of the usual kind are put into blocks, a twentieth of them each, and the lower quartiles
of the blocks, or their medians, make the trend, so that slow steps and disturbances are none. A
*growth* (or a *fall*) goes on from each fifth of the run to the next; a *jump* (or a *drop*) is a
level that changes once. It is whichever leaves less of the blocks' times unexplained, and the
change has to be far above what they vary by.

A machine that is shared with others is slower for minutes, and faster again, which looks alike.
But then it makes all of the step longer, in about the same proportion, while what a program does
has a place: a phase, or the time outside of phases. So each place is looked at in terms of all
others: its time in a block is divided by how much longer than usual these took in it. Where no
place has a trend of its own, only a large and steady one of the whole step counts. And blocks are
left out in which the thread waited far longer for a processor than in others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import LoaderBatches
from pyinstrument_gpu.analysis.contention import step_waits_ns
from pyinstrument_gpu.analysis.gaps import Gap, gaps
from pyinstrument_gpu.analysis.inference import theil_sen
from pyinstrument_gpu.analysis.intervals import quantiles
from pyinstrument_gpu.analysis.step_kinds import StepKinds
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, groups, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

OUTSIDE = -1
"""Stands for the time outside phases."""
LEAST_CHANGE = 0.2
"""Of the step where it is shorter, by which a place changes it."""
LEAST_EVEN_CHANGE = 0.4
"""The same where no place changes in terms of the others."""
_WARM_UP = 0.05
"""Of the steps, which are left out."""
_BLOCKS = 20
_BLOCK_STEPS = 4
_FEWEST_BLOCKS = 10
_FIFTHS = 5
_LEAST_RISE = 0.25
"""Of what a fifth rises by on average, for each of them."""
_NOISE = 4.0
"""So many times what blocks vary by, as a standard deviation."""
_SIGMA = 1.4826
"""Of a normal distribution, for each of its median absolute deviation."""
_LEAST_OF_LOW = 0.5
"""Of the change, that the lower quartile of the steps has, too: else only more steps are slow."""
_LEVEL_BLOCKS = 2
"""The fewest of a level."""
_START = 0.2
"""Of the blocks: a level that ends within them is how the program starts, such as with batches that
workers have made ahead, unless it is the loader's first epoch."""
_ON_THEIR_SIDE = 0.9
"""Of the blocks before and after a jump, nearer to their own level than to the other."""
_USUAL = 1.5
"""So many times a block's lower quartile is the most that a step takes that is usual in it."""
_MORE_WAITING = 0.1
"""The share of their time for which blocks may have waited longer than those that waited least."""
_LEAST_LEFT = 0.6
"""Of the blocks, that waiting for a processor leaves."""
_MOST_SHARE = 0.6
"""Of all that has changed, that a place with a trend of its own has."""
_OWN_CHANGE = 0.25
"""Of a place's change in terms of the others, what its time has changed by, too: else it is the
others that have changed."""


class Place(NamedTuple):
    """The place of a step that has most of a change.

    Attributes:
        path: an index into `Run.paths`, or `OUTSIDE`.
        share: of the change.
        gap: of the time outside phases, the phases between which most of it is; its time is what
            it has changed by.
    """

    path: int
    share: float
    gap: Gap | None


@dataclass(frozen=True)
class Trend:
    """A change of the step over the run.

    Attributes:
        shape: a change that goes on over the whole run, or a level that changes once.
        early_ns, late_ns: what the step takes in the first and in the last fifth of the steps;
            before and after the level changes.
        per_step_ns: by how much each step is longer than the one before; 0 where a level changes.
        since: index of the first step of the later level; None where there is no such step.
        is_epoch: whether the loader's second epoch begins there.
        more_ns: by how much a usual step is longer, on average, than where it is shortest.
        of_ns: what a usual step takes on average.
        place: None where it is not known.
    """

    shape: Literal["growth", "fall", "jump", "drop"]
    early_ns: float
    late_ns: float
    per_step_ns: float
    since: int | None
    is_epoch: bool
    more_ns: float
    of_ns: float
    place: Place | None


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The usual steps in blocks, which follow each other but for those that are left out.

    Attributes:
        steps: of each block, rows of `Run.steps.array`.
        numbers: the index of the step in the middle of each.
        times_ns: the median of its steps.
        low_ns: their lower quartile.
    """

    steps: list[NDArray[np.void]]
    numbers: NDArray[np.float64]
    times_ns: NDArray[np.float64]
    low_ns: NDArray[np.float64]

    def between(self, part: slice) -> NDArray[np.void]:
        """Return the steps of some blocks."""
        return np.concatenate(self.steps[part])


class _Level(NamedTuple):
    """The block from which on another level holds, and the two levels."""

    first: int
    before_ns: float
    after_ns: float

    def unexplained_ns(self, times_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        is_after = np.arange(len(times_ns)) >= self.first
        return np.abs(times_ns - np.where(is_after, self.after_ns, self.before_ns))


class _Change(NamedTuple):
    """A change of the blocks' times that is far above what they vary by.

    Attributes:
        early, late: the blocks that are compared.
        level: None where the change goes on over all of them.
        mean_ns, shortest_ns: over all blocks.
    """

    early: slice
    late: slice
    early_ns: float
    late_ns: float
    per_step_ns: float
    level: _Level | None
    mean_ns: float
    shortest_ns: float

    @property
    def change_ns(self) -> float:
        return self.late_ns - self.early_ns

    @property
    def share(self) -> float:
        """The change as a share of the step where it is shorter."""
        return abs(self.change_ns) / max(min(self.early_ns, self.late_ns), 1.0)

    def is_like(self, other: _Change) -> bool:
        """Return whether the other has the same direction, and goes on as this one does or not."""
        is_steady = self.level is None
        return is_steady == (other.level is None) and self.change_ns * other.change_ns > 0


class _OfPlace(NamedTuple):
    """The change of a place.

    Attributes:
        row: of the place among all.
        changed_ns: what each place has changed by.
    """

    change: _Change
    row: int
    changed_ns: NDArray[np.float64]

    @property
    def share(self) -> float:
        """The share that the place has of all that has changed."""
        whole_ns = float(np.abs(self.changed_ns).sum())
        return abs(float(self.changed_ns[self.row])) / whole_ns if whole_ns else 0.0


def trend(
    run: Run, kinds: StepKinds, whole_steps: NDArray[np.void], batches: LoaderBatches
) -> Trend | None:
    """Return how the step changes over the run; None if it does not, or if that is unknown.

    Args:
        kinds: those of the run's steps.
        whole_steps: those of which all spans are kept.
        batches: those of the loader, which know where an epoch begins.
    """
    blocks = _blocks(run, kinds)
    if blocks is None:
        return None
    paths, places_ns = _times_of_places(run, blocks, whole_steps)
    changes = [
        one
        for place in range(len(places_ns))
        if (one := _change_of_place(blocks, places_ns, place)) is not None
    ]
    # One that stays as it is changes against those that don't.
    of_its_own = [one for one in changes if _has_changed(places_ns, one)]
    found = max(of_its_own, key=lambda one: one.share, default=None)
    if not changes:
        found = _even_change(blocks, places_ns)
    if found is None:
        return None
    change = found.change
    # Where the machine's slowness hides nothing, as the step was measured.
    measured = _change(blocks.numbers, blocks.times_ns)
    if measured is not None and measured.is_like(change):
        change = measured
    rises, level = change.change_ns > 0, change.level
    is_epoch = level is not None and _is_epoch(run, batches, blocks, level.first)
    if level is not None and not is_epoch and level.first < _START * len(blocks.steps):
        return None
    return Trend(
        shape=("growth" if rises else "fall") if level is None else ("jump" if rises else "drop"),
        early_ns=change.early_ns,
        late_ns=change.late_ns,
        per_step_ns=change.per_step_ns,
        since=None if level is None else _since(blocks, level.first),
        is_epoch=is_epoch,
        more_ns=max(change.mean_ns - change.shortest_ns, 0.0),
        of_ns=change.mean_ns,
        place=_place(run, blocks, paths, found) if len(places_ns) else None,
    )


def _blocks(run: Run, kinds: StepKinds) -> _Blocks | None:
    """Return the blocks; None of too few steps, or where they waited for a processor too
    differently."""
    if not len(kinds.steps):
        return None
    steps = kinds.steps[kinds.kind == np.argmax(np.bincount(kinds.kind))]
    steps = steps[int(_WARM_UP * len(steps)) :]
    count = min(_BLOCKS, len(steps) // _BLOCK_STEPS)
    if count < _FEWEST_BLOCKS:
        return None
    places = np.array_split(np.arange(len(steps)), count)
    waited = _waited(run, steps, places)
    kept = waited <= waited.min() + _MORE_WAITING
    if np.count_nonzero(kept) < max(_FEWEST_BLOCKS, _LEAST_LEFT * count):
        return None
    parts = [steps[place] for place, is_kept in zip(places, kept, strict=True) if is_kept]
    times_ns = [durations_ns_of(part) for part in parts]
    return _Blocks(
        steps=parts,
        numbers=np.array([np.median(part["index"]) for part in parts], np.float64),
        times_ns=np.array([np.median(part_ns) for part_ns in times_ns], np.float64),
        low_ns=np.array([_low_ns(part_ns) for part_ns in times_ns]),
    )


def _low_ns(times_ns: NDArray[Any]) -> float:
    """Return the lower quartile: that of steps which nothing disturbed, even if half of them were
    disturbed."""
    return float(quantiles(times_ns, [0.25])[0])


def _waited(
    run: Run, steps: NDArray[np.void], places: list[NDArray[np.intp]]
) -> NDArray[np.float64]:
    """Return the share of its time for which the thread of a step waited for a processor, in the
    median of each block; where none of its steps was read, that of the nearest with one.

    Steps are read after so much time, so those that waited are read far more often than their
    number says. Only usual ones count, as in the times of blocks.
    """
    durations_ns = durations_ns_of(steps)
    shares = step_waits_ns(run, steps) / np.maximum(durations_ns, 1)
    found = np.full(len(places), np.nan)
    for block, place in enumerate(places):
        is_usual = durations_ns[place] <= _USUAL * _low_ns(durations_ns[place])
        known = shares[place][~np.isnan(shares[place]) & is_usual]
        if len(known):
            found[block] = np.median(known)
    known_blocks = np.flatnonzero(~np.isnan(found))
    if not len(known_blocks):
        return np.zeros(len(places))
    distances = np.abs(np.arange(len(places))[:, None] - known_blocks)
    nearest: NDArray[np.float64] = found[known_blocks[distances.argmin(axis=1)]]
    return nearest


def _times_of_places(
    run: Run, blocks: _Blocks, whole_steps: NDArray[np.void]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.float64]]:
    """Return the paths, and for each of them the lower quartile over the steps of each block of the
    time in it alone; last that outside of all. Without rows where some block lacks spans."""
    steps = blocks.between(slice(None))
    is_whole = np.isin(steps["index"], whole_steps["index"])
    chosen = np.flatnonzero((span_scopes(run.spans) == Scope.STEP) & (run.span_self_ns >= 0))
    place = places_in(steps["index"], run.spans["step"][chosen])
    chosen, place = chosen[place >= 0], place[place >= 0]
    ends = np.cumsum([0, *map(len, blocks.steps)])
    parts = [begin + np.flatnonzero(is_whole[begin:end]) for begin, end in pairwise(ends.tolist())]
    paths = distinct(run.spans["path"][chosen])
    if not len(paths) or min(map(len, parts)) < _BLOCK_STEPS:
        return paths, np.empty((0, len(parts)))
    self_ns = run.span_self_ns[chosen]
    outside_ns = durations_ns_of(steps) - np.bincount(place, self_ns, len(steps))
    found = []
    for _, spans in groups(run.spans["path"][chosen]):
        times_ns = np.bincount(place[spans], self_ns[spans], len(steps))
        found.append([_low_ns(times_ns[part]) for part in parts])
    found.append([_low_ns(outside_ns[part]) for part in parts])
    return paths, np.maximum(np.array(found), 0.0)


def _change_of_place(blocks: _Blocks, places_ns: NDArray[np.float64], row: int) -> _OfPlace | None:
    """Return the change that a place has in terms of the others."""
    usual_ns = np.median(places_ns, axis=1)
    others = np.flatnonzero((np.arange(len(places_ns)) != row) & (usual_ns > 0))
    if not len(others):
        return None
    # In each block the median of how much longer than usual they took, each with its own weight.
    ratios = places_ns[others] / usual_ns[others][:, None]
    order = np.argsort(ratios, axis=0)
    weights = np.cumsum(usual_ns[others][order], axis=0)
    middle = np.argmax(weights >= weights[-1] / 2, axis=0)
    slowness = np.take_along_axis(ratios, order, axis=0)[middle, np.arange(ratios.shape[1])]
    if slowness.min() <= 0:
        return None
    change = _change(blocks.numbers, places_ns[row] / slowness + usual_ns[others].sum())
    if change is None or change.share < LEAST_CHANGE:
        return None
    found = _OfPlace(change, row, _changed_ns(places_ns / slowness, change))
    return found if found.share >= _MOST_SHARE else None


def _has_changed(places_ns: NDArray[np.float64], found: _OfPlace) -> bool:
    """Return whether the place itself takes more time, or less, and not only in terms of others."""
    own_ns = float(_changed_ns(places_ns, found.change)[found.row])
    return own_ns / found.change.change_ns >= _OWN_CHANGE


def _even_change(blocks: _Blocks, places_ns: NDArray[np.float64]) -> _OfPlace | None:
    """Return a large and steady change of the whole step, with the place that has most of it."""
    change = _change(blocks.numbers, blocks.times_ns)
    if change is None or change.level is not None or change.share < LEAST_EVEN_CHANGE:
        return None
    if _changed_ns(blocks.low_ns[None, :], change)[0] / change.change_ns < _LEAST_OF_LOW:
        return None
    changed_ns = _changed_ns(places_ns, change)
    row = int(np.argmax(changed_ns / change.change_ns)) if len(places_ns) else 0
    return _OfPlace(change, row, changed_ns)


def _change(numbers: NDArray[np.float64], times_ns: NDArray[np.float64]) -> _Change | None:
    """Return the change of the blocks' times; None where it is not certain."""
    slope = theil_sen(numbers, times_ns)
    if slope is None:
        return None
    line_ns = slope.slope * (numbers - np.median(numbers))
    line_ns += np.median(times_ns - line_ns)
    level = _level(times_ns)
    from_line_ns, from_level_ns = np.abs(times_ns - line_ns), level.unexplained_ns(times_ns)
    per_step_ns, steady = slope.slope, from_line_ns.sum() <= from_level_ns.sum()
    if steady:
        fifth = len(times_ns) // _FIFTHS
        early, late, unexplained_ns = slice(0, fifth), slice(-fifth, None), from_line_ns
        shortest_ns = max(0.0, float(min(line_ns[0], line_ns[-1], times_ns[0], times_ns[-1])))
        is_certain = not slope.low <= 0 <= slope.high and _goes_on(times_ns)
    else:
        early, late = slice(0, level.first), slice(level.first, None)
        per_step_ns, unexplained_ns = 0.0, from_level_ns
        shortest_ns = min(level.before_ns, level.after_ns)
        is_certain = _is_lasting(times_ns, level)
    early_ns, late_ns = (float(np.median(times_ns[part])) for part in (early, late))
    noise_ns = _SIGMA * float(np.median(unexplained_ns))
    if not is_certain or early_ns == late_ns or abs(late_ns - early_ns) < _NOISE * noise_ns:
        return None
    return _Change(
        early,
        late,
        early_ns,
        late_ns,
        per_step_ns,
        None if steady else level,
        float(times_ns.mean()),
        shortest_ns,
    )


def _changed_ns(rows_ns: NDArray[np.float64], change: _Change) -> NDArray[np.float64]:
    """Return what each row has changed by between the blocks that are compared."""
    late_ns = np.median(rows_ns[:, change.late], axis=1)
    difference_ns: NDArray[np.float64] = late_ns - np.median(rows_ns[:, change.early], axis=1)
    return difference_ns


def _goes_on(times_ns: NDArray[np.float64]) -> bool:
    """Return whether the change goes on from each fifth of the blocks to the next."""
    medians = [float(np.median(part)) for part in np.array_split(times_ns, _FIFTHS)]
    change_ns = medians[-1] - medians[0]
    least = _LEAST_RISE / (_FIFTHS - 1)
    return change_ns != 0 and all((b - a) / change_ns >= least for a, b in pairwise(medians))


def _level(times_ns: NDArray[np.float64]) -> _Level:
    """Return the two levels that leave least unexplained."""
    levels = [
        _Level(first, float(np.median(times_ns[:first])), float(np.median(times_ns[first:])))
        for first in range(_LEVEL_BLOCKS, len(times_ns) - _LEVEL_BLOCKS + 1)
    ]
    return min(levels, key=lambda one: float(one.unexplained_ns(times_ns).sum()))


def _is_lasting(times_ns: NDArray[np.float64], level: _Level) -> bool:
    """Return whether nearly all blocks on either side are nearer to their own level."""
    is_after = np.arange(len(times_ns)) >= level.first
    agree = _is_as_after(times_ns, level) == is_after
    return bool(min(agree[is_after].mean(), agree[~is_after].mean()) >= _ON_THEIR_SIDE)


def _is_as_after(times_ns: NDArray[Any], level: _Level) -> NDArray[np.bool_]:
    is_high = times_ns > (level.before_ns + level.after_ns) / 2
    return np.asarray(is_high == (level.after_ns > level.before_ns))


def _since(blocks: _Blocks, first: int) -> int:
    """Return the index of the step, in the block or the one before it, that divides the steps'
    levels best."""
    around = blocks.between(slice(first - 1, first + 1))
    before_ns, after_ns = (
        float(np.median(blocks.times_ns[part])) for part in (slice(0, first), slice(first, None))
    )
    is_as_after = _is_as_after(durations_ns_of(around), _Level(first, before_ns, after_ns))
    # How many agree if the later level begins with each step: those as before it, and as after.
    before = np.append(0, np.cumsum(~is_as_after))[:-1]
    after = np.cumsum(is_as_after[::-1])[::-1]
    return int(around["index"][np.argmax(before + after)])


def _is_epoch(run: Run, batches: LoaderBatches, blocks: _Blocks, first: int) -> bool:
    """Return whether the second loop over the loader begins in that block or the one before it."""
    begins_ns = batches.asked_ns[batches.is_first]
    around = blocks.between(slice(first - 1, first + 1))
    is_known = len(begins_ns) > 1 and run.steps.array["index"][0] == 0
    return is_known and bool(around["begin_ns"][0] <= begins_ns[1] <= around["end_ns"][-1])


def _place(run: Run, blocks: _Blocks, paths: NDArray[np.integer[Any]], found: _OfPlace) -> Place:
    change = found.change
    if found.row < len(paths):
        return Place(int(paths[found.row]), found.share, None)
    early, late = (gaps(run, blocks.between(part)) for part in (change.early, change.late))
    return Place(OUTSIDE, found.share, _gap(early, late, change.change_ns > 0))


def _gap(early: list[Gap], late: list[Gap], rises: bool) -> Gap | None:
    """Return the phases between which the time outside of phases has changed most."""
    before, after = (
        {(one.before, one.behind): one.time_ns for one in each} for each in (early, late)
    )
    changes = [
        Gap(*pair, after.get(pair, 0.0) - before.get(pair, 0.0), is_rare=False)
        for pair in {**before, **after}
    ]
    return max(changes, key=lambda one: one.time_ns if rises else -one.time_ns, default=None)
