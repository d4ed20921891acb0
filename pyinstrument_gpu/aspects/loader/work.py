# SPDX-License-Identifier: Apache-2.0
"""The work of making batches, as a report has it: what DataLoaders' workers did, or the loop
itself, and what the loop would wait if something changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.batches import BATCH_PHASE
from pyinstrument_gpu.analysis.loader_replay import LoaderModel, Prediction
from pyinstrument_gpu.analysis.sampled_time import share_range
from pyinstrument_gpu.aspects.loader.data import HungBatch, Loader, Loaders, WorkerTimes
from pyinstrument_gpu.aspects.loader.stages import LineTree, stages_of, tree_of_phase
from pyinstrument_gpu.core.run import Run

_MOST_STAGES = 10
_LEAST_SHARE = 0.01
"""A stage that takes less is not named."""
_LEAST_SAMPLES = 20
LEAST_WAIT_SHARE = 0.02
"""A loader for which the loop waits less is not worth a word in a short report."""


@dataclass(frozen=True)
class LoaderStage:
    """A part of making a batch.

    Attributes:
        name: the function.
        line: of the program in it that took most, as `file:line`; None where there is none.
        share: of the time in which workers fetched batches.
        batch_ns: per batch.
    """

    name: str
    line: str | None
    share: float
    batch_ns: float

    @property
    def function(self) -> str:
        """Its name, without the functions around it."""
        return self.name.rpartition("<locals>.")[2].partition(":")[0]

    @property
    def place(self) -> str:
        """The function and its line."""
        return self.function if self.line is None else f"{self.function}, {self.line}"


@dataclass(frozen=True)
class LoaderWork:
    """The work of DataLoaders' workers over datasets of one class.

    Attributes:
        dataset: the class.
        workers: how many a loader has at once.
        epochs: in how many loops over a loader.
        batches: that were made.
        batch_ns: how long a worker takes for one.
        busy_share: the part of its time in which a worker makes batches; it waits for the loop in
            the rest.
        cpu_share: the part of the time of making in which its thread ran.
        queued_share: that in which it waited for a processor; None unknown.
        read_bytes: that a worker reads for a batch; None unknown.
        starting_ns: from its start to when a worker could make batches, the mean.
        stages: of fetching a batch, the longest first, ten at most; none where samples are few.
        samples: that these were found in.
        rows: the workers.
        handing_ns: from when a batch was made and asked for to when the loop had it, the median:
            pickling, shared memory, queues, pinning and unpickling. None unknown.
        hung: batches that workers had not made, after very long.
        wait_ns: what the loop waited for a batch; None where the loader is not that of the steps.
        wait_share: that as a share of the time from one batch to the next.
        predictions: what it would wait with other workers, more batches made ahead, or the longest
            stage twice as fast. Empty where a replay of the workers that there were does not give
            what was measured.
    """

    workers: int
    batches: int
    batch_ns: float
    stages: tuple[LoaderStage, ...]
    wait_ns: float | None
    wait_share: float | None
    predictions: tuple[Prediction, ...]
    samples: int = 0
    dataset: str | None = None
    epochs: int | None = None
    busy_share: float | None = None
    cpu_share: float | None = None
    queued_share: float | None = None
    read_bytes: float | None = None
    starting_ns: float | None = None
    rows: tuple[WorkerTimes, ...] = ()
    handing_ns: float | None = None
    hung: tuple[HungBatch, ...] = ()

    @property
    def shares_of_longest(self) -> tuple[float, float, float]:
        """The share of a batch that its longest stage takes: the likely one, the most and the least
        by so many samples."""
        return share_range(self.stages[0].share, self.samples)


def works_of(run: Run) -> tuple[LoaderWork, ...]:
    """Return the work of the loaders, that for the steps first."""
    known: Loaders | None = run.loader
    made = [
        one
        for one in (() if known is None else known.loaders)
        if any(row.batches for row in one.rows)
    ]
    works = [_of_workers(run, one, place == 0) for place, one in enumerate(made)]
    if run.program_facts.loader_workers == 0 and (own := _of_loop(run)) is not None:
        works.insert(0, own)
    return tuple(works)


def _of_workers(run: Run, loader: Loader, feeds_steps: bool) -> LoaderWork:
    rows = loader.rows
    batches = sum(row.batches for row in rows)
    making_ns = loader.making_ns
    waiting_ns = sum(row.waiting_ns for row in rows)
    read = [row.read_bytes for row in rows]
    model = analysis.of(run).loader_model if feeds_steps else None
    tree = LineTree(loader.functions, loader.places, loader.nodes, loader.samples)
    stages = _stages(run, tree, making_ns / batches)
    return LoaderWork(
        dataset=loader.dataset,
        workers=loader.workers,
        epochs=loader.iterators,
        batches=batches,
        batch_ns=making_ns / batches,
        busy_share=making_ns / (making_ns + waiting_ns),
        cpu_share=loader.cpu_share,
        queued_share=loader.queued_share,
        read_bytes=None if None in read else sum(filter(None, read)) / batches,
        starting_ns=sum(row.starting_ns for row in rows) / sum(row.processes for row in rows),
        stages=stages,
        samples=loader.samples,
        rows=rows,
        wait_ns=None if model is None else model.wait_ns,
        wait_share=None if model is None else model.wait_share,
        predictions=() if model is None else _predictions(run, model, stages, loader.samples),
        handing_ns=None if model is None else float(np.median(model.handing_ns)),
        hung=loader.hung,
    )


def _predictions(
    run: Run, model: LoaderModel, stages: tuple[LoaderStage, ...], samples: int
) -> tuple[Prediction, ...]:
    found = analysis.of(run).loader_predictions
    if not found or not stages:
        return found
    return *found, model.with_faster(stages[0].name, share_range(stages[0].share, samples))


def _of_loop(run: Run) -> LoaderWork | None:
    """A loop that makes its batches itself."""
    model = analysis.of(run).loader_model
    if model is None or model.wait_share < LEAST_WAIT_SHARE:
        return None
    tree = tree_of_phase(run.stacks, BATCH_PHASE)
    stages = _stages(run, tree, model.wait_ns)
    return LoaderWork(
        workers=0,
        batches=len(analysis.of(run).batches.asked_ns),
        batch_ns=model.wait_ns,
        stages=stages,
        samples=tree.samples,
        wait_ns=model.wait_ns,
        wait_share=model.wait_share,
        predictions=_predictions(run, model, stages, tree.samples),
    )


def _stages(run: Run, tree: LineTree, batch_ns: float) -> tuple[LoaderStage, ...]:
    stages = stages_of(tree) if tree.samples >= _LEAST_SAMPLES else []
    whole_ns = sum(stage.time_ns for stage in stages)
    return tuple(
        LoaderStage(
            name=stage.name,
            line=None if stage.line is None else run.name_of_line(stage.line),
            share=stage.time_ns / whole_ns,
            batch_ns=stage.time_ns / whole_ns * batch_ns,
        )
        for stage in stages[:_MOST_STAGES]
        if stage.time_ns >= _LEAST_SHARE * whole_ns
    )
