# SPDX-License-Identifier: Apache-2.0
"""Kinds of steps, what a kind takes, and which steps are slow for theirs.

Steps of one kind do the same on as much: they have the same number of samples, items, tokens and
elements of batches, as far as these are known, and the same of those phases that a good part of the
steps has and a good part has not, as where two models are trained in turn. What fewer steps have
makes no kind of its own, but may be the cause of their being slow.

A step is slow if it takes longer than the median of its kind by more than noise: by more than six
times the distance between the lower quartile and the median, and by a fifth: processors that are
shared with others, as all of virtual machines are, make usual steps longer by less. The upper
quartile says nothing of noise where a quarter of the steps is slow for some reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.gaps import optimizer_paths
from pyinstrument_gpu.analysis.intervals import quantiles
from pyinstrument_gpu.analysis.step_times import kept_steps, span_losses, were_profiled
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, groups, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_values import ELEMENTS, TOKENS, values_of_steps

MIN_STEPS = 8
"""Of a kind, for its median to be one to compare with."""
LEAST_EXCESS = 0.2
"""From there on a recording looks at steps more closely (`HostUse::kLong`)."""
NOISE = 6
TURN_SHARE = 0.2
"""So many steps at least have a phase, and so many have it not, that makes two kinds of them."""
_MOST_TURNS = 8
_MOST_RATIO = 2.0
"""A step of a rare kind is compared with one of another size, if that is no more times as large or
as small."""
_BINS = 4
"""Sizes that hardly repeat are put together, so many in each doubling."""


@dataclass(frozen=True, eq=False)
class StepKinds:
    """The steps of a run that ran to their end and were not profiled, by kind.

    Attributes:
        steps: rows of `Run.steps.array`.
        kind: the number of each one's kind.
        typical_ns: what the step would usually take; -1 where there is nothing to compare it with.
        is_slow: whether it takes longer than that by more than noise.
    """

    steps: NDArray[np.void]
    kind: NDArray[np.int64]
    typical_ns: NDArray[np.int64]
    is_slow: NDArray[np.bool_]

    @property
    def is_compared(self) -> NDArray[np.bool_]:
        is_compared: NDArray[np.bool_] = self.typical_ns >= 0
        return is_compared

    def above_usual_ns(
        self, times_ns: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return for each slow step by how much such a time exceeds its median over the kind: 0
        where it does not, or is not known. The median is that of usual steps, as slow ones may be
        those alone that were looked at; of a kind with few of them it is that of all kinds."""
        is_usual = known & ~self.is_slow
        usual_ns = np.full(len(self.steps), _median(times_ns[is_usual]))
        slow_kinds = distinct(self.kind[self.is_slow])
        for kind, places in groups(self.kind):
            of_kind = places[is_usual[places]]
            if len(of_kind) >= MIN_STEPS and kind in slow_kinds:
                usual_ns[places] = _median(times_ns[of_kind])
        more_ns = np.where(known, np.maximum(times_ns - usual_ns, 0), 0)
        return more_ns[self.is_slow]


def step_kinds(run: Run) -> StepKinds:
    """The kinds of a run's steps. Looks at each step and span once."""
    steps = run.steps.closed
    steps = steps[steps["complete"] & ~were_profiled(run, steps["index"])]
    durations_ns = durations_ns_of(steps)
    turns, is_told = _turns(run, steps)
    sizes = _sizes(run, steps)
    keys = np.column_stack([turns, sizes]) if len(steps) else np.empty((0, 1))
    # Counts, as else numpy imports numpy.ma.
    _, kind, _ = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1).astype(np.int64)
    typical_ns, noise_ns = np.full(len(steps), -1), np.zeros(len(steps), np.int64)
    large: list[tuple[int, float, int, int]] = []
    rare: list[NDArray[np.intp]] = []
    for _, places in groups(kind):
        if not is_told[places[0]]:
            continue
        if len(places) < MIN_STEPS:
            rare.append(places)
            continue
        low_ns, middle_ns = quantiles(durations_ns[places], [0.25, 0.5])
        typical_ns[places], noise_ns[places] = middle_ns, middle_ns - low_ns
        large.append(
            (int(turns[places[0]]), _size(sizes[places[0]]), middle_ns, middle_ns - low_ns)
        )
    for places in rare:
        turn, size = int(turns[places[0]]), _size(sizes[places[0]])
        near = [one for one in large if one[0] == turn and _ratio(one[1], size) <= _MOST_RATIO]
        if near:
            _, other, middle_ns, distance_ns = min(near, key=lambda one: _ratio(one[1], size))
            more = max(1.0, size / other)
            typical_ns[places], noise_ns[places] = more * middle_ns, more * distance_ns
    least_ns = np.maximum(NOISE * noise_ns, (LEAST_EXCESS * typical_ns).astype(np.int64))
    is_slow = (typical_ns >= 0) & (durations_ns > typical_ns + least_ns)
    return StepKinds(steps, kind, typical_ns, is_slow)


def _median(values: NDArray[np.int64]) -> int:
    return int(quantiles(values, [0.5])[0]) if len(values) else 0


def _sizes(run: Run, steps: NDArray[np.void]) -> NDArray[np.float64]:
    """Samples, items, tokens and elements of each step; -1 unknown. Those that hardly repeat are
    rounded."""
    tokens, elements = (
        np.nan_to_num(values_of_steps(run, name, steps), nan=-1.0) for name in (TOKENS, ELEMENTS)
    )
    samples = np.where(np.isnan(steps["samples"]), -1.0, steps["samples"])
    sizes = np.column_stack([samples, steps["items"].astype(float), tokens, elements])
    for column in sizes.T:
        _, which, counts = np.unique(column, return_inverse=True, return_counts=True)
        if len(column) and (counts[which.reshape(-1)] < MIN_STEPS).mean() > 0.5:
            known = column > 0
            column[known] = 2.0 ** (np.round(_BINS * np.log2(column[known])) / _BINS)
    return sizes


def _size(sizes: NDArray[np.float64]) -> float:
    """Return the size by which kinds are large: tokens, else elements, samples or items."""
    samples, items, tokens, elements = sizes.tolist()
    return float(next((one for one in (tokens, elements, samples, items) if one > 0), 1.0))


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def _turns(run: Run, steps: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each step which of the phases it has that make kinds, as bits; and whether that is
    known, as its spans are kept."""
    turns, is_told = np.zeros(len(steps), np.int64), np.ones(len(steps), dtype=bool)
    kept = kept_steps(run, span_losses(run))["index"]
    is_kept = np.isin(steps["index"], kept)
    count = int(np.count_nonzero(is_kept))
    spans = run.spans[span_scopes(run.spans) == Scope.STEP]
    place = places_in(steps["index"], spans["step"])
    spans, place = spans[place >= 0], place[place >= 0]
    found = []
    are_optimizers = optimizer_paths(run)
    for path, chosen in groups(spans["path"]):
        has = np.zeros(len(steps), dtype=bool)
        has[place[chosen]] = True
        share = np.count_nonzero(has & is_kept) / max(count, 1)
        if TURN_SHARE <= share <= 1 - TURN_SHARE or (are_optimizers[path] and 0 < share < 1):
            found.append((bool(are_optimizers[path]), np.count_nonzero(has), has))
    found.sort(key=lambda one: one[:2], reverse=True)
    for bit, (_, _, has) in enumerate(found[:_MOST_TURNS]):
        turns[has] |= 1 << bit
        is_told = is_kept
    return turns, is_told
