# SPDX-License-Identifier: Apache-2.0
"""The arrival of batches: the loader's own timeline, as far as the waits for it show it.

A loader with workers runs beside the loop. While the loop waits, each batch is handed over the
moment it is made, so the end of such a wait is a time of the loader's: a loop that asks sooner
waits longer. From one wait to the next the workers do nothing but make batches, unless they have
made all that they may make ahead, and this gives the loader's capacity. A batch that was there when
it was asked for had arrived at some time before.

A batch that is there has to be handed over, which takes its time, and up to several milliseconds
where the loop and the workers have to share cores. This looks like a wait. If the loop hardly
waits, the time from one wait to the next is therefore the loop's own, and the capacity is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import interval_at, quantiles
from pyinstrument_gpu.core.run import Run

READY_NS = 300_000
"""A batch that takes no longer was there already: what it takes to hand it over."""
READY_QUANTILE = 0.2
READY_SHARE = 0.05
"""If this share of batches takes no longer than this share of the time from one to the next, then
that is what it takes to hand over a batch."""
HANDING_NS = 2_000_000
READY_SPREAD = 0.5
"""To hand over a batch takes no longer than this, and about as long each time: the standard
deviation is less than this share of the mean. Batches that several workers are late with come in
bursts."""
FAST_QUANTILE, FAST_HANDINGS = 0.05, 3
"""The fastest batches were there, or nearly: to hand over any of them takes no longer than so many
times as long as those did."""
BUSY_HANDING_NS = 20_000_000
"""To hand over a batch takes no longer than this, even if the loop has no core to itself. On two
busy cores, four workers and the loop took 2 to 11 ms for most of them."""
QUEUE_PER_WORKER = 2
"""The batches that each worker makes ahead, if nothing else is known."""
START_PHASE = "data start"
SELDOM = 0.2
BATCH_PHASE = "data"
LOADER_PHASES = (BATCH_PHASE, START_PHASE, "data end")
MIN_STRETCHES = 3
"""The least number of stretches from one wait to the next that tell the capacity."""
WAIT_SHARE = 0.5
"""The least share of these stretches that the loop must wait for them to be the loader's."""


@dataclass(frozen=True)
class LoaderBatches:
    """The batches that the loop of the steps asked for, as columns of equal length.

    Attributes:
        asked_ns: when it asked.
        given_ns: when it had the batch.
        arrived_ns: when the loader had made it: `given_ns` where the loop waited, before `asked_ns`
            where it did not; a negative number where nothing is known of it.
        is_first: whether it is the first of a loop over the loader, such as an epoch.
        is_start: whether the loader was started for it, with nothing made ahead.
        may_start: the same, and where a single wait may have another reason.
        ready_ns: a batch that took no longer was there already.
        interval_ns: the loader's time per batch while the loop waited for it; None where the loop
            waited too seldom, or too little, to tell.
    """

    asked_ns: NDArray[np.int64]
    given_ns: NDArray[np.int64]
    arrived_ns: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    is_start: NDArray[np.bool_]
    may_start: NDArray[np.bool_]
    ready_ns: int
    interval_ns: float | None

    @property
    def waited(self) -> NDArray[np.bool_]:
        """True for batches for which the loop waited."""
        waited: NDArray[np.bool_] = self.given_ns - self.asked_ns > self.ready_ns
        return waited

    @property
    def start_waits_ns(self) -> NDArray[np.int64]:
        """The time for which the loop waited for the loader to start, each time."""
        waits_ns: NDArray[np.int64] = (self.given_ns - self.asked_ns)[self.is_start]
        return waits_ns

    def handing_ns(self, *, has_device: bool) -> int:
        """Return the most that handing over a batch takes. If there is a device, the loop's core is
        its own, because it mostly launches and waits."""
        if not has_device:
            return self.ready_ns if self.interval_ns is not None else BUSY_HANDING_NS
        return min(HANDING_NS, FAST_HANDINGS * self.fast_ns) if len(self.asked_ns) else HANDING_NS

    @property
    def fast_ns(self) -> int:
        """The time of the fastest batches, which were there already, or nearly."""
        took_ns = self.given_ns - self.asked_ns
        return int(quantiles(took_ns, [FAST_QUANTILE])[0]) if len(took_ns) else 0


def batches(run: Run, timeline: HostTimeline) -> LoaderBatches:
    is_batch = run.are_named((BATCH_PHASE,))
    spans = run.spans[run.spans["thread"] == timeline.thread]
    spans = spans[is_batch[spans["path"]]]
    spans = spans[np.argsort(spans["host_begin_ns"], kind="stable")]
    steps = run.steps.array
    # Evaluation has a loader of its own.
    spans = spans[interval_at(steps["begin_ns"], steps["end_ns"], spans["host_begin_ns"]) >= 0]
    asked_ns, given_ns = spans["host_begin_ns"], spans["host_end_ns"]
    workers = run.program_facts.loader_workers
    ready_ns = _ready_ns(asked_ns, given_ns, workers)
    waited = given_ns - asked_ns > ready_ns
    facts = run.program_facts
    queue = (facts.loader_prefetch or QUEUE_PER_WORKER) * max(1, workers or 1)
    is_first = _are_first(run, timeline, asked_ns)
    is_start = waited & is_first
    interval_ns = _interval_ns(asked_ns, given_ns, waited, is_start, queue)
    if interval_ns is not None:
        # The workers must have begun with a batch that is waited for so long.
        is_start |= given_ns - asked_ns > 2 * queue * interval_ns
    # A loader that is seldom waited for is not what limits the loop.
    is_seldom = bool(len(waited)) and waited.mean() <= SELDOM
    may_start = is_start | (waited & is_seldom)
    # A batch that was there had been made since the last one that was waited for, at the loader's
    # pace, if that is known. It was faster where it would not have been done by then.
    places = np.arange(len(spans))
    last = np.maximum.accumulate(np.where(waited, places, -1))
    since_ns = given_ns[np.maximum(last, 0)]
    pace_ns = 0 if interval_ns is None else interval_ns
    likely_ns = since_ns + np.rint((places - last) * pace_ns).astype(np.int64)
    known = (last >= 0) & (interval_ns is not None) & (likely_ns <= asked_ns)
    before_ns = np.where(known, likely_ns, np.iinfo(np.int64).min)
    arrived_ns = np.where(waited, given_ns, before_ns)
    return LoaderBatches(
        asked_ns, given_ns, arrived_ns, is_first, is_start, may_start, ready_ns, interval_ns
    )


def _ready_ns(asked_ns: NDArray[np.int64], given_ns: NDArray[np.int64], workers: int | None) -> int:
    if len(asked_ns) < 2:
        return READY_NS
    took_ns = given_ns - asked_ns
    usual_ns = int(quantiles(took_ns, [READY_QUANTILE])[0])
    is_short = usual_ns <= READY_SHARE * float(np.median(np.diff(asked_ns)))
    # Without the first ones, which wait for the workers to start.
    later_ns = np.sort(took_ns)[: max(1, round(0.95 * len(took_ns)))]
    is_even = bool(later_ns.std() < READY_SPREAD * later_ns.mean())
    may_hand = workers is not None and workers > 1 and usual_ns <= HANDING_NS
    if is_short or (is_even and may_hand):
        return max(READY_NS, 2 * usual_ns)
    return READY_NS


def _interval_ns(
    asked_ns: NDArray[np.int64],
    given_ns: NDArray[np.int64],
    waited: NDArray[np.bool_],
    is_start: NDArray[np.bool_],
    queue: int,
) -> float | None:
    """Return the time from one wait to the next. If there are more than `queue` batches in between,
    the workers may have made as many as they may, and have waited for the loop."""
    late = np.flatnonzero(waited)
    counts, stretches_ns = np.diff(late), np.diff(given_ns[late])
    waits_ns = (given_ns - asked_ns)[late[1:]]
    kept = (counts <= queue) & ~is_start[late[1:]]
    counts, stretches_ns, waits_ns = counts[kept], stretches_ns[kept], waits_ns[kept]
    if len(counts) < MIN_STRETCHES or waits_ns.sum() < WAIT_SHARE * stretches_ns.sum():
        return None
    return float(stretches_ns.sum() / counts.sum())


def _are_first(run: Run, timeline: HostTimeline, asked_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which batches are first: that of the first step, which the history may have lost, and
    the first behind each phase `data start`."""
    is_first = np.zeros(len(asked_ns), dtype=bool)
    steps = run.steps.array[:1]
    is_first[:1] = (asked_ns[:1] < steps["end_ns"]) & (steps["index"] == 0) if len(steps) else False
    starting = run.are_named((START_PHASE,))
    spans = run.spans[run.spans["thread"] == timeline.thread]
    first = np.searchsorted(asked_ns, spans["host_begin_ns"][starting[spans["path"]]])
    is_first[first[first < len(asked_ns)]] = True
    return is_first
