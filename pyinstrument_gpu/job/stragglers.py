# SPDX-License-Identifier: Apache-2.0
"""The rank that the others wait for, and the phase in which it loses the time.

The thresholds were set on simulated and real jobs with known causes and judged on others, see
docs/jobs.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.contention import CONTENTION, waited_for_processor
from pyinstrument_gpu.job.findings import PROCESSOR, Pattern, Straggler, Stragglers, where_text
from pyinstrument_gpu.job.joined import Joined, traded_ns
from pyinstrument_gpu.job.own_work import MIN_STEPS, HowKnown, OwnWork
from pyinstrument_gpu.job.pipeline import peer_waits_ns
from pyinstrument_gpu.job.suspects import Suspect, apart, suspects

_DOMINANCE = 3.0
"""A straggler is so many times as much later than the next rank."""
_LEAST_SHIFT = 0.03
"""Of a step, what a rank that is always late is later than the others;"""
_LEAST_SHIFT_OF_MANY = 0.01
"""where so many ranks show what is usual:"""
_MANY = 8
_LEAST_PART = 0.5
"""of the loss, at least."""
MOST_CHANCE = 1e-3
"""That all ranks are alike."""
_MOST_CHANCE_IN_SOME_STEPS = 1e-5
"""Less, as a few steps are easily of one rank, and a rank that is named for nothing costs a day."""
_LEAST_OF_HINT = 1.0
"""Of a step, what delays are on average that are told as they were, whatever their chance."""
_STANDS_OUT = (0.1, 0.3, 1.0, 3.0)
"""In a step that stands out, the last rank is by so much of a step later than the next one. If it
is not clear who that is, only longer delays are looked at."""
_LEAST_STEPS = 3
_LEAST_LOSS = 0.03
"""What such steps cost, as a share of all time."""
DEVICES = (
    "the ranks work on devices, and how long these wait for each other is not known; it is with "
    "TORCH_NCCL_ENABLE_TIMING=1 in the environment"
)
_ONE_PHASE = 0.7
"""Of the delay in such steps that arises in one phase. The machine's own hiccups are everywhere."""
_PARTS = 4
"""Of the run: in each of them, a rank that is slower everywhere is late. Competition for processors
makes a rank slower everywhere, too, but comes and goes."""
_MOST_TRADED = 0.1
"""Of the delay, what a rank may work less in phases that some ranks lack."""


def binomial_tail(hits: int, trials: int, chance: float) -> float:
    """The chance of at least so many hits in independent trials, by a chance below 1."""
    if hits <= 0 or chance <= 0:
        return float(hits <= 0)
    # From one number of hits to the next, the chance of it changes by this factor.
    counts = np.arange(trials)
    factors = np.log((trials - counts) / (counts + 1)) + math.log(chance) - math.log1p(-chance)
    logs = trials * math.log1p(-chance) + np.append(0, np.cumsum(factors))
    return min(1.0, float(np.exp(logs[hits:]).sum()))


@dataclass(frozen=True, eq=False)
class Lateness:
    """The lateness of ranks, by their own work per step.

    Attributes:
        typical_ns: a step.
        last: by step, who has most to do.
        late_ns: by step, how much more than the next one.
        shift_ns: by rank, by how much it usually is above the median.
        loss_of_steps_ns: by step, by how much the last one is.
        first_are: how many ranks the first one stands for.
    """

    typical_ns: float
    last: NDArray[np.intp]
    late_ns: NDArray[np.float64]
    shift_ns: NDArray[np.float64]
    loss_of_steps_ns: NDArray[np.float64]
    first_are: int = 1

    @property
    def ranks(self) -> int:
        return len(self.shift_ns)

    @property
    def loss_ns(self) -> float:
        return float(self.loss_of_steps_ns.mean())

    def tail(self, place: int, hits: int, trials: int, share: float = 1.0) -> float:
        """The chance that a rank is last so often in so many cases, if all are alike."""
        ranks = self.ranks + self.first_are - 1
        part = (1 if place else self.first_are) / ranks
        return self.ranks * binomial_tail(hits, trials, share * part)

    @property
    def always(self) -> tuple[int, float] | None:
        """The place of the rank that is always late, and the chance of that."""
        place = int(np.argmax(self.shift_ns))
        shift_ns, ranks, steps = float(self.shift_ns[place]), self.ranks, len(self.last)
        next_ns = float(np.delete(self.shift_ns, place).max())
        least = _LEAST_SHIFT_OF_MANY if ranks >= _MANY else _LEAST_SHIFT
        counts = np.bincount(self.last, minlength=ranks)
        chance = min(1.0, self.tail(place, int(counts[place]), steps))
        is_late = (
            shift_ns > least * self.typical_ns
            and shift_ns > _DOMINANCE * next_ns
            and shift_ns > _LEAST_PART * self.loss_ns
            and chance < MOST_CHANCE
        )
        return (place, chance) if is_late else None

    def standing_out(self, least: float = _STANDS_OUT[0]) -> NDArray[np.bool_]:
        """Return for each step whether the last rank is later than the next by such a part."""
        found: NDArray[np.bool_] = self.late_ns > least * self.typical_ns
        return found

    def times(self, out: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return by rank how often it is last in some steps, those in a row counted once: what
        holds up a process often lasts for several."""
        begins = out.copy()
        begins[1:] &= ~out[:-1] | (self.last[1:] != self.last[:-1])
        counts: NDArray[np.intp] = np.bincount(self.last[begins], minlength=self.ranks)
        return counts

    def costs(self, chosen: NDArray[np.bool_]) -> bool:
        """Return whether the delays of some steps are worth a word."""
        late_ns = float(self.late_ns[chosen].sum())
        return late_ns > _LEAST_LOSS * self.typical_ns * len(self.last)

    @property
    def sometimes(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """The places of ranks that are late in the steps that stand out, and these. Of delays as
        long as the machine's own hiccups there are many, of longer ones few."""
        for least in _STANDS_OUT:
            out = self.standing_out(least)
            times = self.times(out)
            place = int(np.argmax(times))
            rest = int(np.delete(times, place).max())
            is_late = times[place] >= _LEAST_STEPS and times[place] > _DOMINANCE * rest
            if is_late and self.costs(out & (self.last == place)):
                yield place, out

    def chance(self, place: int, out: NDArray[np.bool_], share: float = 1.0) -> float:
        """The chance that a rank is last so often in the steps that stand out.

        Args:
            share: of the time in which a delay counts.
        """
        times = self.times(out)
        found = self.tail(place, int(times[place]), int(times.sum()), share)
        return min(1.0, len(_STANDS_OUT) * found)

    @property
    def several(self) -> list[int]:
        """The places of ranks of which now one, now another is late, or several always are."""
        out = self.standing_out()
        at_times = np.flatnonzero(self.times(out) >= _LEAST_STEPS)
        if len(at_times) < 2 or not self.costs(out):
            at_times = at_times[:0]
        least_ns = max(_LEAST_SHIFT * self.typical_ns, _LEAST_PART * self.loss_ns)
        always = np.flatnonzero(self.shift_ns > least_ns)
        return sorted({*at_times.tolist(), *(always.tolist() if len(always) > 1 else ())})


def lateness(work_ns: NDArray[np.float64], typical_ns: float, first_are: int = 1) -> Lateness:
    """Return how late the ranks are by their work, by rank and step.

    Args:
        first_are: how many ranks the first one stands for.
    """
    ranks = len(work_ns)
    largest_ns = np.partition(work_ns, ranks - 2, axis=0)[-2:]
    # With what each rank is compared: the median rank; of two, the other.
    center_ns = work_ns.min(axis=0) if ranks == 2 else np.median(work_ns, axis=0)
    others_ns = work_ns[::-1] if ranks == 2 else center_ns
    return Lateness(
        typical_ns=typical_ns,
        last=np.argmax(work_ns, axis=0),
        late_ns=largest_ns[1] - largest_ns[0],
        shift_ns=np.median(work_ns - others_ns, axis=1),
        loss_of_steps_ns=largest_ns[1] - center_ns,
        first_are=first_are,
    )


def typical_step_ns(joined: Joined, work: OwnWork) -> float:
    """A usual step with the time before it."""
    return float(np.median(_steps_ns(joined, work)))


def _steps_ns(joined: Joined, work: OwnWork) -> NDArray[np.float64]:
    """The steps that are judged, each with the time before it, of the median rank."""
    median_ns: NDArray[np.float64] = np.median(joined.period_ns[:, work.steps], axis=0)
    return median_ns


def stragglers(joined: Joined, work: OwnWork | str) -> Stragglers:
    """Return who is waited for."""
    if isinstance(work, str):
        return Stragglers(Pattern.UNKNOWN, None, None, None, len(joined.steps), False, reason=work)
    if len(work.steps) < MIN_STEPS:
        reason = f"{len(work.steps)} steps are known well enough; {MIN_STEPS} are needed"
        return _unknown(joined, len(work.steps), reason)
    late = lateness(work.total_ns, typical_step_ns(joined, work))
    # A mean loss is a share of the mean step: rare long steps are in both.
    step_ns = float(_steps_ns(joined, work).mean())
    ranks = [Suspect((place,)) for place in range(len(joined.ranks))]
    straggler = _straggler(joined, work, late, ranks)
    hidden = _hidden(joined, work, late.typical_ns)
    if straggler is None and not hidden:  # otherwise those that wait for a late one look late
        straggler, late = _several(joined, work, late)
    if straggler is None and work.processor_ns is not None:
        straggler, late = _short_of_processors(joined, work, late)
    pattern, hint = Pattern.BALANCED, None
    if straggler is not None:
        pattern = straggler.pattern
    elif hint := _hint(joined, work, late, ranks):
        pattern = hint.pattern
    elif not work.is_busy and _are_several(work, late):
        pattern = Pattern.IN_TURN
    if (
        work.how == HowKnown.MEETINGS
        and on_devices(joined)
        and not _devices_agree(joined, straggler)
    ):
        return _unknown(joined, len(work.steps), DEVICES)
    if hidden and pattern == Pattern.BALANCED:
        return _unknown(joined, len(work.steps), hidden)
    if work.processor_ns is None and work.is_busy:
        # These waits may be what makes a rank late, in one phase as well: always by as much as they
        # are, or now and then, but hardly by more than a step.
        found, least_ns = straggler or hint, step_ns
        delay_ns = 0.0 if found is None else found.lateness_ns
        if found is not None and found.pattern is Pattern.ALWAYS:
            least_ns *= work.thread_share or 0.0
        elif found is not None:
            delay_ns *= len(work.steps) / found.steps
        if delay_ns <= least_ns:
            waited = waited_for_processor(work.thread_share or 0.0, who="the thread of a rank")
            reason = f"{CONTENTION}: {waited}, and too few steps tell how much of that was in steps"
            return _unknown(joined, len(work.steps), reason)
    return Stragglers(
        pattern=pattern,
        straggler=straggler,
        loss_ns=late.loss_ns,
        loss_share=late.loss_ns / step_ns if step_ns else None,
        steps=len(work.steps),
        is_by_arrivals=work.how != HowKnown.MEETINGS,
        left_out=joined.left_out,
        step_ns=step_ns,
        hint=hint,
        several=tuple(joined.ranks[place].rank for place in late.several)
        if pattern == Pattern.IN_TURN
        else (),
        processor_share=work.processor_share,
    )


def _straggler(
    joined: Joined, work: OwnWork, late: Lateness, units: Sequence[Suspect]
) -> Straggler | None:
    return _always(joined, work, late, units) or _sometimes(joined, work, late, units)


def _hint(
    joined: Joined, work: OwnWork, late: Lateness, units: Sequence[Suspect]
) -> Straggler | None:
    found = _sometimes(joined, work, late, units, math.inf)
    if found is None:
        return None
    delay_ns = found.lateness_ns * len(late.last) / found.steps
    return found if delay_ns > _LEAST_OF_HINT * late.typical_ns else None


def _several(joined: Joined, work: OwnWork, late: Lateness) -> tuple[Straggler | None, Lateness]:
    """Ranks that are slow together, and how late they are as one; or none, and what is known."""
    out_ns = work.total_ns[:, late.loss_of_steps_ns > _STANDS_OUT[0] * late.typical_ns]
    for suspect in suspects(joined, late.shift_ns, out_ns):
        units = apart(suspect, len(joined.ranks))
        of_units = work.of(units)
        as_one = lateness(of_units.total_ns, late.typical_ns, len(suspect.places))
        found = _straggler(joined, of_units, as_one, units)
        if found is not None and set(found.ranks) == {
            joined.ranks[one].rank for one in suspect.places
        }:
            return found, as_one
    return None, late


def _unknown(joined: Joined, steps: int, reason: str) -> Stragglers:
    return Stragglers(Pattern.UNKNOWN, None, None, None, steps, False, reason, joined.left_out)


def _hidden(joined: Joined, work: OwnWork, typical_ns: float) -> str:
    """Return where a rank might be slower unseen, as a reason; empty if hardly anywhere."""
    if work.hidden is None:
        return ""
    times_ns = np.where(work.hidden, np.median(joined.self_ns.mean(axis=2), axis=1), 0)
    if times_ns.sum() <= _LEAST_SHIFT * typical_ns:
        return ""
    where = where_text(joined.paths[int(np.argmax(times_ns))])
    return f"how long ranks wait for each other {where} is unknown, and none stands out in the rest"


def on_devices(joined: Joined) -> bool:
    """Return whether any rank works on a device."""
    return any(
        bool((rank.device_ns >= 0).any())
        or any(group.is_on_stream for group in rank.collectives.groups)
        for rank in joined.ranks
    )


def _devices_agree(joined: Joined, straggler: Straggler | None) -> bool:
    """Return whether the devices of the others wait in some phase, as they do for a rank that is
    late: what hosts do may not matter where devices are behind."""
    if straggler is None:
        return False
    is_late = np.array([rank.rank in straggler.ranks for rank in joined.ranks])
    for path in joined.paths[:-2]:
        means_ns = joined.stream_means_ns(path)
        if np.isnan(means_ns).any():
            continue
        apart_ns = float(np.median(means_ns[~is_late]) - means_ns[is_late].max())
        if apart_ns > _LEAST_PART * straggler.lateness_ns:
            return True
    return False


def _always(
    joined: Joined, work: OwnWork, late: Lateness, units: Sequence[Suspect]
) -> Straggler | None:
    found = late.always
    if found is None:
        return None
    place, chance = found
    shares = _shares(joined, work, place, np.ones(len(late.last), dtype=bool))
    # Of the others: the more of its time a rank loses in a phase, the more of it is that phase's.
    time_shares = _time_shares(work, without=place)
    row = int(np.argmax(shares))
    # Slower everywhere, it loses most where most time is spent: more than that is a phase's own.
    is_one = bool(shares[row] > (1 + time_shares[row]) / 2)
    if not _is_in_common(joined, work, late, place, np.ones(len(late.last), dtype=bool)):
        return None
    if not is_one and (work.is_busy or not _is_steady(work, place)):
        return None
    out = late.last == place
    return Straggler(
        **_named(joined, units[place]),
        pattern=Pattern.ALWAYS,
        path=joined.paths[row] if is_one else None,
        steps=int(np.count_nonzero(out)),
        lateness_ns=_lateness_ns(work, place),
        path_share=float(shares[row]) if is_one else 1.0,
        p_value=chance,
    )


def _is_in_common(
    joined: Joined, work: OwnWork, late: Lateness, place: int, steps: NDArray[np.bool_]
) -> bool:
    """Return whether a rank loses its time in phases that all have, where ranks do different things
    by nature: the last stage of a pipeline computes the loss, and the first one reads the batch, in
    phases of their own or between phases."""
    are_common = [all(path in rank.paths for rank in joined.ranks) for path in joined.paths[:-2]]
    if not any(are_common) or peer_waits_ns(joined, work, late.typical_ns) is None:
        return True
    excess_ns = _excess_ns(work, place, steps)
    return float(excess_ns[:-2][are_common].sum()) > _LEAST_PART * float(excess_ns.sum())


def _is_steady(work: OwnWork, place: int) -> bool:
    """Return whether a rank is late throughout, and not only in some part of the run."""
    excess_ns = work.total_ns[place] - np.median(np.delete(work.total_ns, place, axis=0), axis=0)
    parts_ns = [float(np.median(part_ns)) for part_ns in np.array_split(excess_ns, _PARTS)]
    return min(parts_ns) > _LEAST_PART * float(np.median(excess_ns))


def _short_of_processors(
    joined: Joined, work: OwnWork, late: Lateness
) -> tuple[Straggler | None, Lateness]:
    """A rank that is late because it alone waits much for a processor, and how late all are with
    these waits; or none, and what is known."""
    assert work.processor_ns is not None
    as_timed = replace(work, total_ns=work.total_ns + work.processor_ns)
    with_waits = lateness(as_timed.total_ns, late.typical_ns)
    found = with_waits.always
    if found is None:
        return None, late
    place, chance = found
    means_ns = work.processor_ns.mean(axis=1)
    others_ns = np.delete(means_ns, place)
    share = float((means_ns[place] - np.median(others_ns)) / with_waits.shift_ns[place])
    most_ns = min(_LEAST_SHIFT * late.typical_ns, means_ns[place] / _DOMINANCE)
    if share < _ONE_PHASE or others_ns.max() > most_ns:
        return None, late
    straggler = Straggler(
        **_named(joined, Suspect((place,))),
        pattern=Pattern.ALWAYS,
        path=PROCESSOR,
        steps=int(np.count_nonzero(with_waits.last == place)),
        lateness_ns=_lateness_ns(as_timed, place),
        path_share=min(1.0, share),
        p_value=chance,
    )
    return straggler, with_waits


def _named(joined: Joined, unit: Suspect) -> dict[str, Any]:
    ranks = tuple(joined.ranks[place].rank for place in unit.places)
    return {"rank": ranks[0], "ranks": ranks, "host": unit.host, "group": unit.group}


def _sometimes(
    joined: Joined,
    work: OwnWork,
    late: Lateness,
    units: Sequence[Suspect],
    most_chance: float = _MOST_CHANCE_IN_SOME_STEPS,
) -> Straggler | None:
    for place, out in late.sometimes:
        steps = out & (late.last == place)
        shares = _shares(joined, work, place, steps)
        row = int(np.argmax(shares))
        if shares[row] < _ONE_PHASE or not _is_in_common(joined, work, late, place, steps):
            continue
        # By chance a delay hits any rank, and a phase as often as it is under way.
        p_value = len(joined.paths) * late.chance(place, out, float(_time_shares(work)[row]))
        if p_value < most_chance:
            return Straggler(
                **_named(joined, units[place]),
                pattern=Pattern.SOME_STEPS,
                path=joined.paths[row],
                steps=int(np.count_nonzero(steps)),
                lateness_ns=float(late.late_ns[steps].sum()) / len(late.last),
                path_share=float(shares[row]),
                p_value=p_value,
            )
    return None


def _are_several(work: OwnWork, late: Lateness) -> bool:
    if not late.several:
        return False
    out = late.standing_out()
    if not out.any():
        return True
    excess_ns = np.zeros(len(work.own_ns))
    for place in range(late.ranks):
        steps = out & (late.last == place)
        if steps.any():
            excess_ns += np.maximum(_excess_ns(work, place, steps), 0)
    return bool(excess_ns.max() > _ONE_PHASE * excess_ns.sum())


def _lateness_ns(work: OwnWork, place: int) -> float:
    """Return by how much a rank is later than the latest of the others, on average."""
    total_ns = work.total_ns
    others_ns = np.delete(total_ns, place, axis=0).max(axis=0)
    return float(np.maximum(total_ns[place] - others_ns, 0).mean())


def _excess_ns(work: OwnWork, place: int, steps: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return by path what a rank works more than the median of the others, per chosen step."""
    if work.usual_ns is not None and steps.all():
        others_ns = np.median(np.delete(work.usual_ns, place, axis=1), axis=1)
        usual: NDArray[np.float64] = work.usual_ns[:, place] - others_ns
        return usual
    chosen_ns = work.own_ns[:, :, steps]
    others_ns = np.median(np.delete(chosen_ns, place, axis=1), axis=1)
    excess: NDArray[np.float64] = (chosen_ns[:, place] - others_ns).mean(axis=1)
    return excess


def _shares(
    joined: Joined, work: OwnWork, place: int, steps: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return by path the part of what a rank loses in some steps; all 0 if what is known of phases
    doesn't show the loss, or if the rank may have other names for the same."""
    excess_ns = np.maximum(_excess_ns(work, place, steps), 0)
    total_ns = work.total_ns[:, steps]
    others_ns = np.median(np.delete(total_ns, place, axis=0), axis=0)
    lost_ns = float((total_ns[place] - others_ns).mean())
    is_traded = traded_ns(joined, work.own_ns[:, :, steps], place) > _MOST_TRADED * lost_ns
    if is_traded or float(excess_ns.sum()) < max(_LEAST_PART * lost_ns, 1.0):
        return np.zeros(len(excess_ns))
    shares: NDArray[np.float64] = excess_ns / float(excess_ns.sum())
    return shares


def _time_shares(work: OwnWork, without: int | None = None) -> NDArray[np.float64]:
    """Return by path the part of the usual work; without that of one rank."""
    by_path_ns = work.own_ns if work.usual_ns is None else work.usual_ns
    if without is not None:
        by_path_ns = np.delete(by_path_ns, without, axis=1)
    usual_ns = np.array([np.median(own_ns) for own_ns in by_path_ns])
    shares: NDArray[np.float64] = usual_ns / max(float(usual_ns.sum()), 1.0)
    return shares
