# SPDX-License-Identifier: Apache-2.0
"""The workers of DataLoaders as an aspect of a run: which of their functions make a batch, which
worker is slow, and what other workers would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.batches import BATCH_PHASE
from pyinstrument_gpu.analysis.loader_replay import LoaderModel, Prediction
from pyinstrument_gpu.aspects.loader import NAME
from pyinstrument_gpu.aspects.loader.data import (
    HungBatch,
    Loader,
    Loaders,
    WorkerTimes,
    on_timeline,
)
from pyinstrument_gpu.aspects.loader.late_batches import late_batches
from pyinstrument_gpu.aspects.loader.live import LiveLoader
from pyinstrument_gpu.aspects.loader.stages import LineTree, stages_of, tree_of_phase
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import counted, duration, printable, size, small_percent

_MOST_STAGES = 10
_SUMMED_UP = 3
_LEAST_SHARE = 0.01
"""A stage that takes less is not named."""
_LEAST_SAMPLES = 20
_DEVIATIONS = 2
"""So many standard deviations its share may be off, as samples are few."""
_LEAST_WAIT_SHARE = 0.02
"""The short report has a line of a loader that takes as much of a step."""


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


class LoaderAspect(DocumentAspect[Run, tuple[LoaderWork, ...]]):
    """The workers of DataLoaders."""

    name = NAME
    document = Loaders
    noted = "the workers of loaders"
    heading = "Loader"
    live = LiveLoader()
    section_type = tuple[LoaderWork, ...]
    about = "what the workers of DataLoaders did, and what others would."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        batches = on_timeline(given.get(NAME), given["anchor"])
        return super().attributes(given) | {"loader_batches": batches}

    def section(self, run: Run) -> tuple[LoaderWork, ...]:
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

    def summary(self, section: tuple[LoaderWork, ...], document: ReportedRun) -> Iterator[Part]:
        """The loader of the steps, where the loop waits for it."""
        work = section[0]
        if work.wait_ns is None or (work.wait_share or 0.0) < _LEAST_WAIT_SHARE:
            return
        who = "no workers" if not work.workers else counted(work.workers, "worker")
        busy = "" if work.busy_share is None else f", busy {small_percent(work.busy_share, 1)}"
        stages = ", ".join(
            f"{stage.name} {small_percent(stage.share, 1)}" for stage in work.stages[:_SUMMED_UP]
        )
        more = [one for one in work.predictions if one.workers > work.workers][:1]
        others = "".join(
            f"; with {one.workers} the loop would wait {_range(one)}, not {duration(work.wait_ns)}"
            for one in more
        )
        if stages or others:
            of = f" ({stages})" if stages else ""
            yield Sentence(printable(f"Loader: {who}{busy}{of}{others}"))

    def parts(self, section: tuple[LoaderWork, ...], document: ReportedRun) -> Iterator[Part]:
        for work in section:
            yield from _parts(work)

    def causes(self, run: Run) -> Iterator[Cause]:
        yield late_batches(run)

    def unknown(self, run: Run) -> Iterator[str]:
        known: Loaders | None = run.loader
        if run.program_facts.loader_workers and (known is None or not known.loaders):
            yield "Workers of the loader: they were not watched."
        for loader in () if known is None else known.loaders:
            if len(loader.rows) < loader.workers:
                yield (
                    f"Workers of the loader of {printable(loader.dataset)}: "
                    f"{loader.workers - len(loader.rows)} of {loader.workers} could not be watched."
                )


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
    longest = stages[0]
    doubt = _DEVIATIONS * (longest.share * (1 - longest.share) / samples) ** 0.5
    shares = longest.share, min(1.0, longest.share + doubt), max(0.0, longest.share - doubt)
    return *found, model.with_faster(longest.name, shares)


def _of_loop(run: Run) -> LoaderWork | None:
    """A loop that makes its batches itself."""
    model = analysis.of(run).loader_model
    if model is None or model.wait_share < _LEAST_WAIT_SHARE:
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


def _range(one: Prediction) -> str:
    least, most = duration(one.least_ns), duration(one.most_ns)
    return least if least == most else f"{least} to {most}"


def _parts(work: LoaderWork) -> Iterator[Part]:
    yield Sentence()
    if work.workers:
        workers = counted(work.workers, "worker")
        made = f"{work.batches:,} batch{'es' * (work.batches != 1)}"
        yield Sentence(printable(f"Loader of {work.dataset}, {workers}, {made}"), "title")
        yield Sentence(" ".join(_of_making(work)))
    else:
        yield Sentence("Loader without workers: the loop makes its batches itself", "title")
    if rows := [*_stage_rows(work)]:
        title = f"of making a batch, by {counted(work.samples, 'sample')}"
        yield table([title, "%", "per batch", "line"], [rows])
    for one in work.hung:
        words = f"Worker {one.worker} (process {one.process}) was asked for batch {one.number}"
        yield Sentence(f"{words}, and had not made it {duration(one.for_ns)} later.", "warn")
    if work.predictions:
        rows = [
            Row(printable(one.change), [duration(one.wait_ns), _range(one)])
            for one in work.predictions
        ]
        yield table(["the loop would wait for a batch with", "likely", "range"], [rows])


def _of_making(work: LoaderWork) -> Iterator[str]:
    """Sentences on the workers together, and on the slowest."""
    yield f"A worker makes a batch in {duration(work.batch_ns)}"
    if work.busy_share is not None:
        yield f"and is busy {small_percent(work.busy_share, 1)} of the time."
    if work.cpu_share is not None:
        queued = work.queued_share
        waits = "" if queued is None else f" and waits for one {small_percent(queued, 1)}"
        runs = small_percent(work.cpu_share, 1)
        yield f"While it makes one, it runs on a processor {runs}{waits} of the time."
    if work.read_bytes:
        yield f"It reads {size(work.read_bytes)} for a batch."
    if work.starting_ns is not None:
        yield f"It starts in {duration(work.starting_ns)}."
    if len(work.rows) > 1:
        slowest = max(work.rows, key=lambda row: row.making_ns / max(1, row.batches))
        usual, longest = slowest.making_ns / max(1, slowest.batches), slowest.longest_ns
        yield f"Worker {slowest.worker} is the slowest: {duration(usual)} for a batch,"
        yield f"{duration(longest)} for its longest."


def _stage_rows(work: LoaderWork) -> Iterator[Row]:
    for one in work.stages:
        cells = [small_percent(one.share, 1), duration(one.batch_ns), printable(one.line or "")]
        yield Row(printable(one.name), cells)
    if work.handing_ns is not None:
        yield Row("then handing it over", ["", duration(work.handing_ns), ""])


ASPECT = LoaderAspect()
