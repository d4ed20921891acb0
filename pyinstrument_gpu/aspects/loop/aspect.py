# SPDX-License-Identifier: Apache-2.0
"""Causes of slow steps that phases tell: late batches, evaluation, what only some steps do, and the
first step. It records nothing itself, and has no section."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.advice import faster_loading
from pyinstrument_gpu.analysis.batches import BATCH_PHASE, START_PHASE
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.step_kinds import TURN_SHARE
from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

_EVALUATION = ("eval", "evaluate", "evaluation", "val", "validate", "validation")
_LOADER = (BATCH_PHASE, START_PHASE, "data end")


class LoopAspect(Aspect):
    """What the loop does beside training steps that are all alike."""

    name = "loop"

    def causes(self, run: Run) -> Iterator[Cause]:
        spans = run.spans[span_scopes(run.spans) == Scope.STEP]
        named = {
            name: run.are_named(names)[spans["path"]]
            for name, names in {"loader": _LOADER, "evaluation": _EVALUATION}.items()
        }
        known = _with_spans(run)
        workers = run.program_facts.loader_workers or 0
        yield Cause(
            name="late_batch",
            words="late batches",
            remedy=faster_loading(run),
            precedence=Precedence.WAIT,
            intervals=_intervals(spans[named["loader"]], _workers(run, spans[named["loader"]])),
            known=known,
            notes=tuple(f"worker {number}" for number in range(workers)),
            is_advised=False,
            is_idle=workers > 0,
        )
        evaluations = _evaluations(spans[named["evaluation"]])
        yield Cause(
            name="evaluation",
            words="evaluation",
            remedy="evaluate less often, or on fewer samples",
            precedence=Precedence.ACT,
            intervals=evaluations,
            known=known,
        )
        bounds = evaluations["begin_ns"], evaluations["end_ns"]
        rare = ~named["loader"] & (interval_at(*bounds, spans["host_begin_ns"]) < 0)
        rare &= np.isin(spans["path"], _rare_paths(run, spans))
        yield Cause(
            name="rare_phase",
            words="phases that most steps lack",
            remedy="do less often, or beside the steps, what these phases do",
            precedence=Precedence.ACT,
            intervals=_intervals(spans[rare], spans["path"][rare].astype(np.int64)),
            known=known,
            notes=run.paths,
        )
        first = run.steps.closed[:1]
        first = first[first["index"] == 0]
        yield Cause(
            name="first_step",
            words="the first step, which loads what later ones reuse",
            remedy="leave it out of means",
            precedence=Precedence.REST,
            intervals=intervals_of(first["begin_ns"], first["end_ns"]),
            is_advised=False,
        )


def _intervals(spans: NDArray[np.void], note: NDArray[np.int64] | None = None) -> NDArray[np.void]:
    return intervals_of(
        spans["host_begin_ns"],
        spans["host_end_ns"],
        spans["thread"],
        -1 if note is None else note,
    )


def _evaluations(spans: NDArray[np.void]) -> NDArray[np.void]:
    """Of each step that evaluates, the time from its first phase of that to the end of the last: in
    between it does nothing else."""
    steps, place = np.unique(spans["step"], return_inverse=True)
    begins_ns = np.full(len(steps), np.iinfo(np.int64).max)
    ends_ns, threads = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    np.minimum.at(begins_ns, place, spans["host_begin_ns"])
    np.maximum.at(ends_ns, place, spans["host_end_ns"])
    threads[place] = spans["thread"]
    return intervals_of(begins_ns, ends_ns, threads)


def _with_spans(run: Run) -> NDArray[np.int64] | None:
    """The steps that begin behind the spans that made room; None for all."""
    if len(run.spans) >= run.phases_recorded:
        return None
    steps = run.steps.closed
    since_ns = int(run.spans["host_end_ns"][:1].max(initial=0))
    known: NDArray[np.int64] = steps["index"][steps["begin_ns"] >= since_ns]
    return known


def _rare_paths(run: Run, spans: NDArray[np.void]) -> NDArray[np.int64]:
    """The paths that so few steps have that they make no kind of step."""
    pairs = distinct(spans["path"].astype(np.int64) << 40 | spans["step"])
    paths, counts = np.unique(pairs >> 40, return_counts=True)
    rare: NDArray[np.int64] = paths[counts < TURN_SHARE * len(run.steps.closed)]
    return rare


def _workers(run: Run, spans: NDArray[np.void]) -> NDArray[np.int64]:
    """Which worker of a DataLoader made each batch: they take turns, from when the loader begins.
    -1 where that is not known, and where there was none."""
    found = np.full(len(spans), -1)
    workers = run.program_facts.loader_workers
    if not workers:
        return found
    order = np.argsort(spans["host_begin_ns"], kind="stable")
    starts = run.are_named((START_PHASE,))
    loads = run.are_named((BATCH_PHASE,))
    begins_ns = np.sort(run.spans["host_begin_ns"][starts[run.spans["path"]]])
    epoch = np.searchsorted(begins_ns, spans["host_begin_ns"][order], side="right")
    is_batch = loads[spans["path"][order]]
    counted = np.cumsum(is_batch) - 1
    first = np.searchsorted(epoch, epoch)
    since = counted - np.append(0, np.cumsum(is_batch))[first]
    found[order] = np.where((epoch > 0) & is_batch, since % workers, -1)
    return found


ASPECT = LoopAspect()
