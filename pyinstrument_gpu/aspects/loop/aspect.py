# SPDX-License-Identifier: Apache-2.0
"""Causes of slow steps that phases tell: evaluation, what only some steps do, and the first step.
It records nothing itself, and has no section."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.batches import LOADER_PHASES
from pyinstrument_gpu.analysis.gaps import optimizer_paths
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.slow_places import steps_with_spans
from pyinstrument_gpu.analysis.step_kinds import TURN_SHARE
from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope

_EVALUATION = ("eval", "evaluate", "evaluation", "val", "validate", "validation")


class LoopAspect(Aspect[Run, None]):
    """The work of the loop beside training steps that are all alike."""

    name = "loop"

    def causes(self, run: Run) -> Iterator[Cause]:
        spans = run.spans[span_scopes(run.spans) == Scope.STEP]
        named = {
            name: run.are_named(names)[spans["path"]]
            for name, names in {"loader": LOADER_PHASES, "evaluation": _EVALUATION}.items()
        }
        known = steps_with_spans(run)
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
            words="rare phases",
            remedy="do the work of these phases less often, or in parallel with the steps",
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
    """Return for each step that evaluates the time from its first phase of that to the end of the
    last: in between it does nothing else."""
    steps, place = np.unique(spans["step"], return_inverse=True)
    begins_ns = np.full(len(steps), np.iinfo(np.int64).max)
    ends_ns, threads = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    np.minimum.at(begins_ns, place, spans["host_begin_ns"])
    np.maximum.at(ends_ns, place, spans["host_end_ns"])
    threads[place] = spans["thread"]
    return intervals_of(begins_ns, ends_ns, threads)


def _rare_paths(run: Run, spans: NDArray[np.void]) -> NDArray[np.int64]:
    """The paths that so few steps have that they make no kind of step."""
    pairs = distinct(spans["path"].astype(np.int64) << 40 | spans["step"])
    paths, counts = np.unique(pairs >> 40, return_counts=True)
    # The step of an optimizer, with its closure, makes a kind of step.
    trains = optimizer_paths(run)
    for path, parent in enumerate(run.path_parents.tolist()):
        trains[path] |= parent >= 0 and trains[parent]
    rare: NDArray[np.int64] = paths[(counts < TURN_SHARE * len(run.steps.closed)) & ~trains[paths]]
    return rare


ASPECT = LoopAspect()
