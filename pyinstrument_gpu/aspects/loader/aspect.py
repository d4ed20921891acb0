# SPDX-License-Identifier: Apache-2.0
"""The workers of DataLoaders as an aspect of a run: which of their functions make a batch, which
worker is slow, and what other workers would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.loader_replay import MOST_BATCHES, LoaderModel, Prediction
from pyinstrument_gpu.aspects.loader import NAME
from pyinstrument_gpu.aspects.loader.data import Loader, Loaders, WorkerTimes
from pyinstrument_gpu.aspects.loader.stages import stages_of
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, Table, table
from pyinstrument_gpu.parts.words import brief, counted, printable, size, small_percent

_MOST_STAGES = 10
_SUMMED_UP = 3
_LEAST_SHARE = 0.01
"""A stage that takes less is not named."""
_LEAST_WAIT_SHARE = 0.02
"""The short report has a line of a loader that takes as much of a step."""
_PREFETCH = 2
"""torch's default."""


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
    """What the workers of DataLoaders over datasets of one class did.

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
        stages: of fetching a batch, the longest first, ten at most.
        rows: the workers.
        predictions: what the loop would wait for a batch with other workers; the first is what it
            does wait, by the same calculation. Empty where that does not agree with what was
            measured.
        wait_ns: what the loop waited for a batch; None where the loader is not that of the steps.
    """

    dataset: str
    workers: int
    epochs: int
    batches: int
    batch_ns: float
    busy_share: float
    cpu_share: float
    queued_share: float | None
    read_bytes: float | None
    starting_ns: float
    stages: tuple[LoaderStage, ...]
    rows: tuple[WorkerTimes, ...]
    predictions: tuple[Prediction, ...]
    wait_ns: float | None


class LoaderAspect(DocumentAspect):
    """The workers of DataLoaders."""

    name = NAME
    document = Loaders
    noted = "the workers of loaders"
    heading = "Loader"
    section_type = tuple[LoaderWork, ...]
    about = "what the workers of DataLoaders did, and what others would."

    def section(self, run: Run) -> tuple[LoaderWork, ...]:
        known: Loaders | None = run.loader
        if known is None:
            return ()
        made = [one for one in known.loaders if any(row.batches for row in one.rows)]
        return tuple(_work(run, one, place == 0) for place, one in enumerate(made))

    def summary(self, section: tuple[LoaderWork, ...], document: Any) -> Iterator[Part]:
        """The loader of the steps, where the loop waits for it."""
        work = section[0]
        stages = ", ".join(
            f"{stage.name} {small_percent(stage.share, 1)}" for stage in work.stages[:_SUMMED_UP]
        )
        if work.wait_ns is None or not stages:
            return
        step_ns = document.steps.mean_ns if hasattr(document, "steps") else 0.0
        if step_ns and work.wait_ns < _LEAST_WAIT_SHARE * step_ns:
            return
        yield Sentence(
            printable(
                f"Loader: {counted(work.workers, 'worker')}, busy {small_percent(work.busy_share, 1)}"
                f" of the time: {stages}{_shortly(work)}"
            )
        )

    def parts(self, section: tuple[LoaderWork, ...], document: Any) -> Iterator[Part]:
        for work in section:
            yield from _parts(work)

    def unknown(self, run: Run) -> Iterator[str]:
        known: Loaders | None = run.loader
        for loader in () if known is None else known.loaders:
            if len(loader.rows) < loader.workers:
                yield (
                    f"Workers of the loader of {printable(loader.dataset)}: "
                    f"{loader.workers - len(loader.rows)} of {loader.workers} could not be watched."
                )


def _work(run: Run, loader: Loader, feeds_steps: bool) -> LoaderWork:
    rows = loader.rows
    batches = sum(row.batches for row in rows)
    making_ns = sum(row.making_ns for row in rows)
    waiting_ns = sum(row.waiting_ns for row in rows)
    processes = sum(row.processes for row in rows)
    queued = [row.queued_ns for row in rows]
    read = [row.read_bytes for row in rows]
    stages = stages_of(loader)
    fetching_ns = sum(stage.time_ns for stage in stages)
    cpu_share = min(1.0, sum(row.cpu_ns for row in rows) / max(1, making_ns))
    queued_share = (
        None if None in queued else min(1.0, sum(filter(None, queued)) / max(1, making_ns))
    )
    model = _model(run, loader, cpu_share, queued_share or 0.0) if feeds_steps else None
    return LoaderWork(
        dataset=loader.dataset,
        workers=loader.workers,
        epochs=loader.iterators,
        batches=batches,
        batch_ns=making_ns / batches,
        busy_share=making_ns / max(1, making_ns + waiting_ns),
        cpu_share=cpu_share,
        queued_share=queued_share,
        read_bytes=None if None in read else sum(filter(None, read)) / batches,
        starting_ns=sum(row.starting_ns for row in rows) / processes,
        stages=tuple(
            LoaderStage(
                name=stage.name,
                line=None if stage.line is None else run.name_of_line(stage.line),
                share=stage.time_ns / fetching_ns,
                batch_ns=stage.time_ns / fetching_ns * making_ns / batches,
            )
            for stage in stages[:_MOST_STAGES]
            if stage.time_ns >= _LEAST_SHARE * fetching_ns
        ),
        rows=rows,
        predictions=() if model is None else tuple(_predictions(model, stages, fetching_ns)),
        wait_ns=None if model is None else model.wait_ns,
    )


def _model(run: Run, loader: Loader, cpu_share: float, queued_share: float) -> LoaderModel | None:
    """None where too little is known of the batches of the steps."""
    found = analysis.of(run).batches
    count = min(len(found.asked_ns), MOST_BATCHES)
    if count < 2 or loader.workers != run.program_facts.loader_workers:
        return None
    asked_ns, given_ns = found.asked_ns[-count:], found.given_ns[-count:]
    made = np.array([(one.begin_ns, one.end_ns) for one in loader.batches], dtype=np.int64)
    if not len(made):
        return None
    anchor = run.environment["anchor"]
    ends_ns = np.sort(made[:, 1] - anchor["monotonic_ns"] + anchor["run_ns"])
    last = np.searchsorted(ends_ns, given_ns, side="right") - 1
    is_late = (last >= 0) & found.waited[-count:]
    handing_ns = np.median(given_ns[is_late] - ends_ns[last[is_late]]) if is_late.any() else 0
    handing_ns = min(int(handing_ns), int(np.median(given_ns - asked_ns)))
    usual = ~found.is_start[-count:]
    return LoaderModel(
        making_ns=made[:, 1] - made[:, 0],
        using_ns=(asked_ns[1:] - given_ns[:-1])[usual[1:]],
        handing_ns=handing_ns,
        workers=loader.workers,
        prefetch=run.program_facts.loader_prefetch or _PREFETCH,
        cpu_share=cpu_share,
        queued_share=queued_share,
        loop_cpu=1.0,
        cores=run.environment.get("cores") or 1,
        wait_ns=float((given_ns - asked_ns)[usual].mean()) if usual.any() else 0.0,
    )


def _predictions(model: LoaderModel, stages: list[Any], fetching_ns: int) -> Iterator[Prediction]:
    if not model.explains_run:
        return
    yield model.predicted(model.workers, model.prefetch)
    for workers in sorted({max(1, model.workers // 2), model.workers * 2, model.workers * 4}):
        if workers != model.workers:
            yield model.predicted(workers, model.prefetch)


def _shortly(work: LoaderWork) -> str:
    if len(work.predictions) < 2 or work.wait_ns is None:
        return ""
    better = [one for one in work.predictions[1:] if one.workers > work.workers]
    return "".join(
        f"; {one.workers} would wait {_range(one)}, not {brief(work.wait_ns)}" for one in better[:1]
    )


def _range(one: Prediction) -> str:
    least, most = brief(one.least_ns), brief(one.most_ns)
    return least if least == most else f"{least} to {most}"


def _parts(work: LoaderWork) -> Iterator[Part]:
    yield Sentence()
    yield Sentence(
        printable(f"Loader of {work.dataset}, {counted(work.workers, 'worker')}"), "title"
    )
    queued = (
        "" if work.queued_share is None else f", {small_percent(work.queued_share, 1)} waits for one"
    )
    yield Sentence(
        f"A worker makes a batch in {brief(work.batch_ns)} and is busy "
        f"{small_percent(work.busy_share, 1)} of the time; of making, "
        f"{small_percent(work.cpu_share, 1)} runs on a processor{queued}"
        + ("" if not work.read_bytes else f"; it reads {size(work.read_bytes)} for a batch")
        + f". {work.batches:,} batches in {counted(work.epochs, 'epoch')}; "
        f"a worker starts in {brief(work.starting_ns)}"
    )
    if work.stages:
        rows = [
            Row(printable(f"{one.name}"), [small_percent(one.share, 1), brief(one.batch_ns), one.line or ""])
            for one in work.stages
        ]
        yield table(["of making a batch", "%", "per batch", "line"], [rows])
    slowest = max(work.rows, key=lambda row: row.making_ns / max(1, row.batches))
    yield Sentence(
        f"Worker {slowest.worker} is the slowest, with "
        f"{brief(slowest.making_ns / max(1, slowest.batches))} for a batch and "
        f"{brief(slowest.longest_ns)} for the longest"
    )
    if work.predictions:
        rows = [
            Row(counted(one.workers, "worker"), [brief(one.wait_ns), _range(one)])
            for one in work.predictions
        ]
        yield table(["the loop would wait for a batch with", "wait", "range"], [rows])


ASPECT = LoaderAspect()
