# SPDX-License-Identifier: Apache-2.0
"""What is kept of a rank's run next to those of the other ranks: its phases by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.profiled_steps import were_profiled
from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.core.distinct import distinct
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.job.data import RankData
from pyinstrument_gpu.job.run_end import run_end

_MOST_CELLS = 16_000_000
"""Of all ranks together, so many phases of steps are kept: 32 bytes each, or 24 where there is no
device."""
_MOST_OPERATIONS = 4_000_000
"""Of collective operations, 57 bytes each."""
_MOST_RANKS = 10_000
"""A file that says there are more is not believed so far as to keep less of it."""


def rank_data(run: Run, file: str | None = None) -> RankData:
    """What is kept of a rank's run; nothing of it refers to the run.

    Of a job of many ranks, phases and steps the newest steps are kept, as many as fit, and a note
    says so; of collective operations the newest as well. Takes about 1 ms per 10,000 spans.

    Raises:
        ValueError: the run does not say which rank it is of.
    """
    environment = run.environment
    rank = environment.get("rank")
    if rank is None:
        raise ValueError("the run does not say which rank it is of")
    notes = list(run.notes)
    steps = analysis.of(run).kept_steps
    steps = steps[steps["end_ns"] >= 0]
    steps = steps[~were_profiled(run, steps["index"])]
    spans = np.flatnonzero(span_scopes(run.spans) == Scope.STEP)
    # Those of steps that are kept.
    place = np.searchsorted(steps["index"], run.spans["step"][spans])
    is_kept = np.append(steps["index"], -1)[place] == run.spans["step"][spans]
    spans, place = spans[is_kept], place[is_kept]
    paths = distinct(run.spans["path"][spans])
    ranks = min(environment.get("world_size", 1), _MOST_RANKS)
    most = max(1, _MOST_CELLS // max(1, len(paths)) // ranks)
    if len(steps) > most:
        notes.append(
            f"of its {len(steps):,} steps the last {most:,} are compared with those of other ranks"
        )
        first = len(steps) - most
        spans, place = spans[place >= first], place[place >= first] - first
        steps = steps[first:]
    shape = len(paths), len(steps)
    cell = np.searchsorted(paths, run.spans["path"][spans]) * len(steps) + place

    def summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(shape, np.int64)
        np.add.at(sums.reshape(-1), cell, values)
        return sums

    first_begin_ns = np.full(shape, np.iinfo(np.int64).max)
    np.minimum.at(first_begin_ns.reshape(-1), cell, run.spans["host_begin_ns"][spans])
    calls = np.bincount(cell, minlength=first_begin_ns.size).reshape(shape)
    first_begin_ns[calls == 0] = -1
    last_end_ns = np.full(shape, np.int64(-1))
    np.maximum.at(last_end_ns.reshape(-1), cell, run.spans["host_end_ns"][spans])
    device_ns = run.span_device_ns[spans]
    if (device_ns >= 0).any():
        timed = np.bincount(cell[device_ns >= 0], minlength=calls.size).reshape(shape)
        is_timed = (timed == calls) & (calls > 0)
        stream_ns = np.where(is_timed, summed(np.maximum(device_ns, 0)), -1)
    else:
        stream_ns = np.broadcast_to(np.int64(-1), shape)
    return RankData(
        rank=rank,
        file=file,
        environment=environment,
        complete=run.complete,
        notes=tuple(notes),
        dropped=run.dropped,
        duration_ns=run.duration_ns,
        began_realtime_ns=run.began_realtime_ns,
        steps=steps["index"].copy(),
        steps_ended=run.steps_ended,
        step_begin_ns=steps["begin_ns"].copy(),
        step_ns=steps["end_ns"] - steps["begin_ns"],
        paths=tuple(run.paths[path] for path in paths.tolist()),
        first_begin_ns=first_begin_ns,
        last_end_ns=last_end_ns,
        # Of runs that were made by hand they may not be known.
        self_ns=summed(np.maximum(run.span_self_ns[spans], 0)),
        stream_ns=stream_ns,
        collectives=_newest(run.collectives, max(1, _MOST_OPERATIONS // ranks)),
        stalls=run.stalls,
        end=run_end(run),
    )


def _newest(collectives: Collectives, most: int) -> Collectives:
    cut = len(collectives.events) - most
    if cut <= 0:
        return collectives
    events = collectives.events[cut:].copy()
    return replace(collectives, events=events, missed=collectives.missed + cut)
