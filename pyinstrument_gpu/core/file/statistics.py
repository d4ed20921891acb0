# SPDX-License-Identifier: Apache-2.0
"""The statistics of a run: the newest STATISTICS document, and what came after it."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.file.blocks import Records, nonsense
from pyinstrument_gpu.core.file.cursor import Cursor
from pyinstrument_gpu.core.file.device_times import DeviceTimes
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.statistics import (
    BUCKET_COUNT,
    PhaseStatistics,
    Scope,
    Statistic,
    bucket_bounds,
    fold_spans,
    merged,
)
from pyinstrument_gpu.core.steps import StepTotals, no_steps
from pyinstrument_gpu.errors import RunFileDamagedError

Phases: TypeAlias = Mapping[tuple[int, Scope], PhaseStatistics]

_WHERE = "STATISTICS"
_WATERMARKS = struct.Struct("<QQQ")
_STEP_SUMS = struct.Struct("<QQQQQd")
_ROW = struct.Struct("<IIII")
_STATISTIC = struct.Struct("<QQQQQQQ")
_BUCKET_BYTES = 16
# The bits of a row's mask, lowest first.
_STATISTICS_OF_A_PHASE = ("host", "self_host", "device", "blocked")
# No run counts more; the sum of a histogram's counts then stays within 64 bits.
_COUNT_LIMIT = 1 << 52


@dataclass(frozen=True)
class StatisticsDocument:
    """The STATISTICS document: the statistics of all spans, steps and device times whose index is
    below `spans`, `steps` and `device_times`. Steps that were profiled have totals of their own."""

    spans: int
    steps: int
    device_times: int
    step_totals: StepTotals
    phases: Phases
    profiled_totals: StepTotals = field(default_factory=no_steps)


def decode_statistics(data: bytes) -> StatisticsDocument:
    cursor = Cursor(data, _WHERE)
    spans, steps, device_times = cursor.numbers(_WATERMARKS)
    totals, profiled_totals = _step_totals(cursor), _step_totals(cursor)
    phases: dict[tuple[int, Scope], PhaseStatistics] = {}
    while cursor:
        path, scope, mask, _ = cursor.numbers(_ROW)
        if scope >= len(Scope) or mask >> len(_STATISTICS_OF_A_PHASE) or (path, scope) in phases:
            raise nonsense(_WHERE, f"a row has {path = }, {scope = }, {mask = :#x}")
        statistics = {
            name: _statistic(cursor)
            for bit, name in enumerate(_STATISTICS_OF_A_PHASE)
            if mask >> bit & 1
        }
        known = {name: statistic for name, statistic in statistics.items() if statistic.count}
        phases[path, Scope(scope)] = PhaseStatistics(**known)
    return StatisticsDocument(spans, steps, device_times, totals, phases, profiled_totals)


def _step_totals(cursor: Cursor) -> StepTotals:
    count, complete, items, sampled, sampled_ns, samples = cursor.numbers(_STEP_SUMS)
    duration = _statistic(cursor)
    if not (
        max(complete, sampled) <= count == duration.count
        and sampled_ns <= duration.total_ns
        and math.isfinite(samples)
    ):
        raise nonsense(_WHERE, f"the totals of {count} steps contradict themselves")
    return StepTotals(count, complete, items, sampled, sampled_ns, samples, duration)


def _statistic(cursor: Cursor) -> Statistic:
    count, total_ns, squares_low, squares_high, min_ns, max_ns, buckets = cursor.numbers(_STATISTIC)
    # Most have a few buckets, for which numpy's checks would take longer than all the rest.
    pairs = np.frombuffer(cursor.take(_BUCKET_BYTES * buckets), "<u8").tolist()
    indices, counts = pairs[0::2], pairs[1::2]
    is_valid = count < _COUNT_LIMIT and sum(counts) == count and all(counts)
    is_valid &= all(map(operator.lt, indices, indices[1:]))
    if not is_valid or max(indices, default=0) >= BUCKET_COUNT:
        raise _contradiction(count)
    statistic = Statistic(
        count=count,
        total_ns=total_ns,
        sum_of_squares=squares_low + (squares_high << 64),
        min_ns=min_ns,
        max_ns=max_ns,
        bucket_indices=np.array(indices, np.int64),
        bucket_counts=np.array(counts, np.int64),
    )
    if not _sums_agree(statistic):
        raise _contradiction(count)
    return statistic


def _contradiction(count: int) -> RunFileDamagedError:
    return nonsense(_WHERE, f"a statistic of {count} durations contradicts itself")


def _sums_agree(statistic: Statistic) -> bool:
    count, total_ns = statistic.count, statistic.total_ns
    min_ns, max_ns = statistic.min_ns, statistic.max_ns
    if not count:
        return (total_ns, statistic.sum_of_squares, min_ns, max_ns) == (0, 0, 0, 0)
    first_low, first_high = bucket_bounds(int(statistic.bucket_indices[0]))
    last_low, last_high = bucket_bounds(int(statistic.bucket_indices[-1]))
    return (
        first_low <= min_ns <= first_high
        and last_low <= max_ns <= last_high
        and count * min_ns <= total_ns <= count * max_ns
        and count * statistic.sum_of_squares >= total_ns**2
    )


def with_blocked(phases: Phases, spans: NDArray[np.void], scopes: NDArray[np.int64]) -> Phases:
    """The statistics with blocked times, where those of all spans of a path are known."""
    is_known = spans["blocked_ns"] >= 0
    known = spans[is_known]
    folded = fold_spans(known["path"], scopes[is_known], blocked=known["blocked_ns"])
    both = dict(phases)
    for key, phase in folded.items():
        blocked = phase.blocked
        if key in phases and blocked is not None and blocked.count == phases[key].count:
            both[key] = replace(phases[key], blocked=blocked)
    return both


def with_moved_outside(
    statistics: StatisticsDocument,
    first: int,
    first_time: int,
    spans: NDArray[np.void],
    self_ns: NDArray[np.int64],
    times: DeviceTimes,
    scopes: NDArray[np.int64],
    chosen: NDArray[np.bool_],
) -> StatisticsDocument:
    """The statistics in which the chosen spans lie outside of steps: while these were counted, it
    was not known that their step had ended.

    Args:
        first: the number of the first of `spans`, and `first_time` that of the first device time.
    """
    moved = np.flatnonzero(chosen[: max(0, statistics.spans - first)])
    device_ns = np.full(len(spans), -1, np.int64)
    counted = times.span[times.number + first_time < statistics.device_times]
    device_ns[counted] = times.device_ns[counted]
    parts = fold_spans(
        spans["path"][moved],
        scopes[moved],
        host=spans["host_end_ns"][moved] - spans["host_begin_ns"][moved],
        self_host=self_ns[moved],
        device=device_ns[moved],
    )
    phases = dict(statistics.phases)
    for key, part in parts.items():
        rest = _without(phases.get(key, PhaseStatistics()), part)
        if rest is None:
            continue  # the two contradict each other, as a part of the file is damaged
        phases.pop(key)
        if rest.count:
            phases[key] = rest
        outside = key[0], Scope.OUTSIDE
        phases[outside] = PhaseStatistics.merge([phases.get(outside, PhaseStatistics()), part])
    return replace(statistics, phases=phases)


def _without(whole: PhaseStatistics, part: PhaseStatistics) -> PhaseStatistics | None:
    rest: dict[str, Statistic | None] = {}
    for name in _STATISTICS_OF_A_PHASE:
        of_whole, of_part = getattr(whole, name), getattr(part, name)
        if of_part is not None:
            of_whole = None if of_whole is None else of_whole.without(of_part)
            if of_whole is None:
                return None
        rest[name] = of_whole if of_whole is not None and of_whole.count else None
    return PhaseStatistics(**rest)


def with_newer_spans(
    statistics: StatisticsDocument, records: Records, scopes: NDArray[np.int64]
) -> Phases:
    """The statistics with the spans that came after them."""
    begin = max(0, statistics.spans - records.first)
    newer = records.items[begin : len(scopes)]
    folded = fold_spans(
        newer["path"],
        scopes[begin:],
        host=durations_ns_of(newer, "host_"),
        self_host=newer["self_ns"],
    )
    return merged(chain(statistics.phases.items(), folded.items()))


def with_newer_device_times(
    statistics: StatisticsDocument,
    phases: Phases,
    first: int,
    times: DeviceTimes,
    spans: NDArray[np.void],
    scopes: NDArray[np.int64],
    state: State,
) -> tuple[Phases, int]:
    """The statistics with the device times that came after them, and how many could not be
    counted."""
    newer = times.number + first >= statistics.device_times
    members = times.span[newer]
    known = members[times.device_ns[members] >= 0]
    folded = fold_spans(spans["path"][known], scopes[known], device=times.device_ns[known])
    written = max(state.device_times, first + times.kept)
    uncounted = max(0, written - statistics.device_times) - len(members)
    return merged(chain(phases.items(), folded.items())), uncounted
