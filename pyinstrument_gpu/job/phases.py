# SPDX-License-Identifier: Apache-2.0
"""Phases over the ranks: what each takes, who is slowest in it, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.findings import (
    MOST_ROWS,
    STEP,
    Pattern,
    PhaseAcrossRanks,
    Straggler,
    Stragglers,
    phase_text,
)
from pyinstrument_gpu.job.joined import Joined, traded_ns
from pyinstrument_gpu.job.own_work import HowKnown, OwnWork
from pyinstrument_gpu.job.stragglers import MOST_CHANCE, lateness, typical_step_ns
from pyinstrument_gpu.job.suspects import Suspect, apart
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, duration, percent


def phases(joined: Joined, work: OwnWork | str, found: Stragglers) -> tuple[PhaseAcrossRanks, ...]:
    """Return each phase, in the order of appearance, and the rest of the time. Nothing if no step
    is common to the ranks."""
    if not len(joined.steps):
        return ()
    slow = _places(joined, found)
    parts_ns = _parts_ns(work, found, slow)
    rows = []
    for row, path in enumerate(joined.paths):
        self_ns = joined.self_ns[row]
        if not self_ns.any():
            continue
        if isinstance(work, str):
            rows.append(_across(joined, path, self_ns, self_ns, None, Pattern.UNKNOWN, None, ()))
            continue
        pattern, waiting_ns, part_ns = Pattern.UNKNOWN, None, None
        if found.pattern != Pattern.UNKNOWN and work.is_known(row):
            pattern = _pattern(joined, work, row, found.straggler, slow)
            part_ns = None if parts_ns is None else float(parts_ns[row])
            if work.waiting_ns is not None:
                waiting_ns = float(np.median(work.waiting_ns[row].mean(axis=1)))
        own_ns = work.own_ns[row]
        if joined.uncommon[row] and _is_traded(joined, work, row):
            pattern, part_ns = Pattern.UNKNOWN, None
        rows.append(_across(joined, path, self_ns, own_ns, waiting_ns, pattern, part_ns, slow))
    return tuple(rows)


def _places(joined: Joined, found: Stragglers) -> tuple[int, ...]:
    """Return the places of the ranks that are named."""
    named = () if found.straggler is None else found.straggler.ranks
    return tuple(place for place, rank in enumerate(joined.ranks) if rank.rank in named)


def _is_traded(joined: Joined, work: OwnWork, row: int) -> bool:
    """Return whether half of the slowest rank's work there may have other names on others."""
    means_ns = work.own_ns[row].mean(axis=1)
    slowest = int(np.argmax(means_ns))
    distance_ns = float(means_ns[slowest] - np.median(np.delete(means_ns, slowest)))
    return traded_ns(joined, work.own_ns, slowest) > distance_ns / 2


def whole_step(joined: Joined, work: OwnWork | str, found: Stragglers) -> PhaseAcrossRanks | None:
    """Steps as a whole, with the time before them; None if no step is common to the ranks."""
    if not len(joined.steps):
        return None
    period_ns = joined.period_ns
    if isinstance(work, str):
        return _across(joined, STEP, period_ns, period_ns, None, Pattern.UNKNOWN, None, ())
    waiting_ns = None
    if work.how == HowKnown.ARRIVALS and work.waiting_ns is not None:
        waiting_ns = float(np.median(work.waiting_ns.sum(axis=0).mean(axis=1)))
    slow, pattern = _places(joined, found), found.pattern
    return _across(joined, STEP, period_ns, work.total_ns, waiting_ns, pattern, found.loss_ns, slow)


def _across(
    joined: Joined,
    path: str,
    self_ns: NDArray[np.float64],
    own_ns: NDArray[np.float64],
    waiting_ns: float | None,
    pattern: Pattern,
    imbalance_ns: float | None,
    slow: tuple[int, ...],
) -> PhaseAcrossRanks:
    means_ns = self_ns.mean(axis=1)
    works_ns = own_ns.mean(axis=1)
    slowest = int(np.argmax(works_ns))
    distances_ns = np.zeros(own_ns.shape[1])
    if len(own_ns) > 1:
        these = slow if slowest in slow else (slowest,)
        distances_ns = own_ns[slowest] - np.median(np.delete(own_ns, these, axis=0), axis=0)
    return PhaseAcrossRanks(
        path=path,
        ranks=int(np.count_nonzero(means_ns)),
        median_ns=float(np.median(means_ns)),
        low_ns=float(means_ns.min()),
        high_ns=float(means_ns.max()),
        slowest_rank=joined.ranks[slowest].rank,
        work_ns=float(works_ns[slowest]),
        distance_ns=float(distances_ns.mean()),
        is_significant=pattern != Pattern.UNKNOWN and _is_sure(distances_ns, len(own_ns)),
        imbalance_ns=imbalance_ns,
        waiting_ns=waiting_ns,
        pattern=pattern,
    )


def _is_sure(distances_ns: NDArray[np.float64], ranks: int) -> bool:
    """Return whether the mean distance of the slowest of so many ranks is more than chance."""
    if len(distances_ns) < 2:
        return False
    error_ns = float(distances_ns.std(ddof=1)) / math.sqrt(len(distances_ns))
    limit = NormalDist().inv_cdf(1 - MOST_CHANCE / ranks)
    return float(distances_ns.mean()) > limit * error_ns


def _pattern(
    joined: Joined, work: OwnWork, row: int, found: Straggler | None, slow: tuple[int, ...]
) -> Pattern:
    if found is not None and found.path == joined.paths[row]:
        slowest = int(np.argmax(work.own_ns[row].mean(axis=1)))
        if joined.ranks[slowest].rank in found.ranks:
            # Alone, small delays of others that cost no step anything might tell otherwise.
            return found.pattern
    typical_ns = typical_step_ns(joined, work)
    if len(slow) > 1:
        as_one = work.of(apart(Suspect(slow), len(joined.ranks)))
        found_always = lateness(as_one.own_ns[row], typical_ns, len(slow)).always
        if found_always is not None and found_always[0] == 0:
            return Pattern.ALWAYS
    late = lateness(work.own_ns[row], typical_ns)
    if late.always is not None:
        return Pattern.ALWAYS
    if any(late.chance(place, out) < MOST_CHANCE for place, out in late.sometimes):
        return Pattern.SOME_STEPS
    return Pattern.IN_TURN if late.several else Pattern.BALANCED


def _parts_ns(
    work: OwnWork | str, found: Stragglers, slow: tuple[int, ...]
) -> NDArray[np.float64] | None:
    """Return by path the part of the loss: what the last rank of each step spends there more than
    the median rank, or than that of the others where several are slow."""
    if isinstance(work, str) or found.loss_ns is None or work.how == HowKnown.DURATIONS:
        return None
    last = np.argmax(work.total_ns, axis=0)
    steps = np.arange(len(last))
    of_last_ns = work.own_ns[:, last, steps]
    if work.own_ns.shape[1] == 2:
        center_ns = work.own_ns[:, 1 - last, steps]
    else:
        others = np.delete(np.arange(work.own_ns.shape[1]), slow if len(slow) > 1 else ())
        center_ns = np.stack([np.median(own_ns[others], axis=0) for own_ns in work.own_ns])
    excess_ns = np.maximum((of_last_ns - center_ns).mean(axis=1), 0)
    parts: NDArray[np.float64] = found.loss_ns * excess_ns / max(float(excess_ns.sum()), 1.0)
    return parts


def phases_parts(
    phases: Sequence[PhaseAcrossRanks],
    step: PhaseAcrossRanks | None,
    stragglers: Stragglers,
    ranks_read: int,
) -> Iterator[Part]:
    """The table of phases across ranks; nothing if no step is common to them."""
    if not phases:
        return
    unit = Unit.fitting(max(one.high_ns for one in phases))
    rows = []
    for one in [*phases[:MOST_ROWS], *([] if step is None else [step])]:
        # Where ranks do not differ for certain, or in turn, none is named.
        slowest = [UNKNOWN, UNKNOWN, UNKNOWN]
        if one.is_significant and one.pattern.is_of_one_rank:
            work_ns = unit.text(one.work_ns), f"+{unit.text(one.distance_ns)}"
            slowest = [str(one.slowest_rank), *work_ns]
        times_ns = (one.median_ns, one.low_ns, one.high_ns, one.waiting_ns)
        cells = [*map(unit.text, times_ns), *slowest, unit.text(one.imbalance_ns)]
        rows.append(Row(phase_text(one.path), cells, note=_pattern_note(one)))
    headers = ["phase", "median", "least", "most", "waiting", "slowest", "own work", "more"]
    yield Sentence()
    yield Sentence(f"Phases across ranks: {unit.name} per step", "title")
    whole = [] if step is None else [rows.pop()]
    yield table([*headers, "costs"], [rows, whole])
    if len(phases) > MOST_ROWS:
        yield Sentence(f"{len(phases) - MOST_ROWS:,} further phases not shown", "note")
    if stragglers.loss_ns is not None and stragglers.loss_ns > 0:
        of_step = (
            "" if stragglers.loss_share is None else f" ({percent(stragglers.loss_share, 1)}%)"
        )
        yield Sentence(
            f"Of a step, {duration(stragglers.loss_ns)}{of_step} would go if each rank were as the "
            + ("quicker one" if ranks_read == 2 else "median")
        )


def _pattern_note(one: PhaseAcrossRanks) -> str:
    says_nothing = one.pattern in (Pattern.BALANCED, Pattern.UNKNOWN)
    return one.pattern.value if one.is_significant and not says_nothing else ""
