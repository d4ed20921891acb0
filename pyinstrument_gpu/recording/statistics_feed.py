# SPDX-License-Identifier: Apache-2.0
"""What a recording has added to its statistics since somebody last asked, without reading the run.

The tap hands over the statistics that the recorder writes about once a second, and the spans and
steps that are newer than these, so a look costs what is new. Nothing is ever counted twice: where
more has come since the last look than the tap keeps, the newest spans are counted by the next look.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import BlockType, Records
from pyinstrument_gpu.core.file.framing import read_tap
from pyinstrument_gpu.core.file.items import SPAN_ITEM, STEP_ITEM
from pyinstrument_gpu.core.file.statistics import (
    StatisticsDocument,
    decode_statistics,
    with_newer_spans,
)
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistic import BUCKET_COUNT, Statistic, bucket_bounds
from pyinstrument_gpu.core.statistics import PhaseStatistics, as_if_not_profiled, over_scopes
from pyinstrument_gpu.native import native
from pyinstrument_gpu.sinks.path_table import PathTable
from pyinstrument_gpu.sinks.tap import TapReader

_FIRST_WAIT_S = 2.0
"""The first statistics come within a second; later where there are tens of thousands of paths."""
_POLL_S = 0.02
_NOTHING = Statistic.of(np.empty(0, np.int64))


class StatisticsFeed:
    """The statistics of one active recording.

    Args:
        reader: of its tap; closed by `close`.
    """

    def __init__(self, reader: TapReader) -> None:
        self._reader = reader
        self._table = PathTable()
        self._document: StatisticsDocument | None = None
        self._spans = Records(0, np.empty(0, SPAN_ITEM))
        self._steps = Records(0, np.empty(0, STEP_ITEM))
        self._phases_before: dict[str, PhaseStatistics] = {}
        self._steps_before = _NOTHING

    def close(self) -> None:
        self._reader.close()

    def since_last(self) -> tuple[dict[str, PhaseStatistics], Statistic]:
        """Host times by path, all scopes together, and the durations of the steps that closed,
        since the last call. The first call gives those of the whole recording, and waits for them
        for up to two seconds."""
        deadline_s = time.monotonic() + _FIRST_WAIT_S
        self._take()
        while self._document is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self._take()
        phases, steps = self._so_far()
        new = {
            path: PhaseStatistics(
                _since(phase.host, self._phases_before.get(path, PhaseStatistics()).host),
                _since(phase.self_host, self._phases_before.get(path, PhaseStatistics()).self_host),
            )
            for path, phase in phases.items()
        }
        new_steps = _since(steps, self._steps_before)
        self._phases_before, self._steps_before = phases, steps
        return {path: phase for path, phase in new.items() if phase.count}, new_steps

    def _take(self) -> None:
        native.harvest()
        blocks = read_tap(self._reader.take())
        self._table.take(blocks)
        self._document = blocks.document(BlockType.STATISTICS, decode_statistics) or self._document
        document = self._document
        seen, steps_seen = (0, 0) if document is None else (document.spans, document.steps)
        spans, steps = (
            blocks.records(kind, dtype)
            for kind, dtype in ((BlockType.SPANS, SPAN_ITEM), (BlockType.STEPS, STEP_ITEM))
        )
        self._spans = _newer(self._spans, spans, seen)
        self._steps = _newer(self._steps, steps, steps_seen)

    def _so_far(self) -> tuple[dict[str, PhaseStatistics], Statistic]:
        document = self._document
        if document is None:
            return {}, _NOTHING
        phases = with_newer_spans(document, self._spans, span_scopes(self._spans.items))
        # Steps that were profiled count like others: both sums and counts have them.
        totals = over_scopes(as_if_not_profiled(phases))
        table = self._table
        by_path = {
            table.paths[path]: phase
            for path, phase in totals.items()
            if path < len(table.paths) and table.is_phase[path]
        }
        steps = self._steps.items
        durations = (
            document.step_totals.duration,
            document.profiled_totals.duration,
            Statistic.of(steps["end_ns"] - steps["begin_ns"]),
        )
        return by_path, Statistic.merge(durations)


def _newer(kept: Records, new: Records, counted: int) -> Records:
    """Of both those that a document, which has counted so many, lacks, without a gap."""
    if not len(kept.items):
        kept = new
    elif len(new.items) and new.first == kept.first + len(kept.items):
        kept = Records(kept.first, np.append(kept.items, new.items))
    elif len(new.items) and new.first <= counted:
        kept = new
    if kept.first > counted:
        return Records(counted, kept.items[:0])
    return Records(counted, kept.items[counted - kept.first :])


def _since(now: Statistic | None, before: Statistic | None) -> Statistic:
    """What has been added. The extremes are known to a bucket of the histogram, 3 %."""
    now, before = now or _NOTHING, before or _NOTHING
    if not before.count:
        return now
    counts = _counts(now) - _counts(before)
    indices = np.flatnonzero(counts)
    if not len(indices):
        return _NOTHING
    return Statistic(
        count=now.count - before.count,
        total_ns=now.total_ns - before.total_ns,
        sum_of_squares=now.sum_of_squares - before.sum_of_squares,
        min_ns=max(bucket_bounds(int(indices[0]))[0], now.min_ns),
        max_ns=min(bucket_bounds(int(indices[-1]))[1], now.max_ns),
        bucket_indices=indices,
        bucket_counts=counts[indices],
    )


def _counts(statistic: Statistic) -> NDArray[Any]:
    counts = np.zeros(BUCKET_COUNT, np.int64)
    counts[statistic.bucket_indices] = statistic.bucket_counts
    return counts
