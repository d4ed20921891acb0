# SPDX-License-Identifier: Apache-2.0
"""Late batches as a cause of slow steps: which worker was late, and in which stage.

The workers of a DataLoader take turns, so where it is known when the loader began, the number of
the batch tells whose it is. What a worker did is known of batches that took much longer than usual,
where samples found it (`LongBatch`). Such a batch is the one that was waited for if it ended within
the wait, and was made by the worker whose turn it was; or, where that is not known, if it was made
for most of the wait, and no other such batch was.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.advice import faster_loading
from pyinstrument_gpu.analysis.batches import BATCH_PHASE, LOADER_PHASES, START_PHASE
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.slow_places import steps_with_spans
from pyinstrument_gpu.aspects.loader.data import LineTime, Loader, LongBatch
from pyinstrument_gpu.aspects.loader.stages import LineTree, stages_of
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

_MOST = 0.5
"""A stage that has as much of the time of a late batch is what it was late with."""


def late_batches(run: Run) -> Cause:
    """The waits for batches."""
    spans = run.spans[span_scopes(run.spans) == Scope.STEP]
    spans = spans[run.are_named(LOADER_PHASES)[spans["path"]]]
    workers = run.program_facts.loader_workers or 0
    notes = [f"worker {number}" for number in range(workers)]
    found = _workers(run, spans)
    known: Any = run.loader
    loader = known.loaders[0] if known is not None and known.loaders else None
    if workers and loader is not None and loader.workers == workers:
        _add_stages(run, loader, spans, found, notes)
    return Cause(
        name="late_batch",
        words="late batches",
        remedy=faster_loading(run),
        precedence=Precedence.WAIT,
        intervals=intervals_of(
            spans["host_begin_ns"], spans["host_end_ns"], spans["thread"], found
        ),
        known=steps_with_spans(run),
        notes=tuple(notes),
        is_advised=False,
        is_idle=workers > 0,
    )


def _add_stages(
    run: Run, loader: Loader, spans: NDArray[np.void], found: NDArray[np.int64], notes: list[str]
) -> None:
    """Add notes to waits that end with a long batch."""
    order = np.argsort(spans["host_begin_ns"], kind="stable")
    begins_ns, ends_ns = spans["host_begin_ns"][order], spans["host_end_ns"][order]
    run_ns = began_ns(run.anchor, "monotonic_ns")
    if run_ns is None:
        return
    times_ns = np.array([batch.end_ns for batch in loader.long], np.int64) - run_ns
    late: dict[int, list[LongBatch]] = defaultdict(list)
    for batch, wait in zip(
        loader.long, interval_at(begins_ns, ends_ns, times_ns).tolist(), strict=True
    ):
        if wait < 0:
            continue
        place = int(order[wait])
        inside_ns = batch.end_ns - max(batch.begin_ns, int(begins_ns[wait]) + run_ns)
        is_most = inside_ns >= _MOST * (ends_ns[wait] - begins_ns[wait])
        if found[place] == batch.worker or (found[place] < 0 and is_most):
            late[place].append(batch)
    for place, batches in late.items():
        stage = _stage_of(run, loader, batches[0])
        if len(batches) == 1 and stage is not None:
            found[place] = len(notes)
            notes.append(f"worker {batches[0].worker}, {stage}")


def _stage_of(run: Run, loader: Loader, batch: LongBatch) -> str | None:
    """The stage that a batch spent most of its time in, and its line; None where none has most."""
    times_ns = dict(batch.times)
    inside = set(times_ns)
    for node in range(max(inside, default=-1), -1, -1):
        if node in inside:
            inside.add(loader.nodes[node].parent)
    numbers = {node: number for number, node in enumerate(sorted(inside - {-1}))}
    nodes = [
        LineTime(
            numbers.get(loader.nodes[node].parent, -1),
            loader.nodes[node].place,
            times_ns.get(node, 0),
        )
        for node in numbers
    ]
    stages = stages_of(LineTree(loader.functions, loader.places, nodes))
    if not stages or stages[0].time_ns < _MOST * sum(times_ns.values()):
        return None
    line = stages[0].line
    return stages[0].name + ("" if line is None else f" at {run.name_of_line(line)}")


def _workers(run: Run, spans: NDArray[np.void]) -> NDArray[np.int64]:
    """Return which worker of a DataLoader made each batch: they take turns, from when the loader
    begins. -1 where that is not known, and where there was none."""
    found = np.full(len(spans), -1)
    workers = run.program_facts.loader_workers
    if not workers:
        return found
    order = np.argsort(spans["host_begin_ns"], kind="stable")
    is_start = run.are_named((START_PHASE,))[run.spans["path"]]
    loads = run.are_named((BATCH_PHASE,))
    begins_ns = np.sort(run.spans["host_begin_ns"][is_start])
    epoch = np.searchsorted(begins_ns, spans["host_begin_ns"][order], side="right")
    is_batch = loads[spans["path"][order]]
    counted = np.cumsum(is_batch) - 1
    first = np.searchsorted(epoch, epoch)
    since = counted - np.append(0, np.cumsum(is_batch))[first]
    found[order] = np.where((epoch > 0) & is_batch, since % workers, -1)
    return found
