# SPDX-License-Identifier: Apache-2.0
"""The workers of DataLoaders as an aspect of a run: which of their functions make a batch, which
worker is slow, and what other workers would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, Finding, twice_as_fast, unpriced
from pyinstrument_gpu.analysis.batches import BATCH_PHASE
from pyinstrument_gpu.analysis.loader_replay import Prediction
from pyinstrument_gpu.aspects.loader import NAME
from pyinstrument_gpu.aspects.loader.data import Loader, Loaders, on_timeline
from pyinstrument_gpu.aspects.loader.late_batches import late_batches
from pyinstrument_gpu.aspects.loader.live import LiveLoader
from pyinstrument_gpu.aspects.loader.work import LEAST_WAIT_SHARE, LoaderWork, works_of
from pyinstrument_gpu.aspects.loader.worker_memory import MUCH_BYTES
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import counted, duration, printable, size, small_percent

_SUMMED_UP = 3
_MOSTLY = 0.5
_MOST_OF_FIELD = 2


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
        return works_of(run)

    def summary(self, section: tuple[LoaderWork, ...], document: ReportedRun) -> Iterator[Part]:
        """The loader of the steps, where the loop waits for it."""
        work = section[0]
        if work.wait_ns is None or (work.wait_share or 0.0) < LEAST_WAIT_SHARE:
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

    def where(self, run: Run, scope: Scope, phase: str | None) -> str | None:
        """Return what the workers of the steps' loader do, where the loop waits for them."""
        works = works_of(run)[:1] if (scope, phase) == (Scope.STEP, BATCH_PHASE) else ()
        waiting = analysis.of(run).waiting_share
        is_waiting = waiting is None or waiting > _MOSTLY
        for work in works:
            if work.workers and work.wait_ns is not None and work.stages and is_waiting:
                share = small_percent(work.stages[0].share, 1)
                whose = "its worker spends" if work.workers == 1 else "its workers spend"
                return f"{whose} {share} of a batch in {work.stages[0].place}"
        return None

    def failures(self, run: Run) -> Iterator[Finding]:
        for work in works_of(run)[:1]:
            yield from _faster(run, work)
        known: Loaders | None = run.loader
        for loader in () if known is None else known.loaders:
            yield from _grown(run, loader)

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


def _faster(run: Run, work: LoaderWork) -> Iterator[Finding]:
    """Yield what it would save if the longest stage took half as long, where the loop waits for
    batches and no GPU has anything to do meanwhile."""
    if not work.stages or not work.wait_ns or not work.wait_share:
        return
    if run.environment.get("gpus") != [] or work.wait_share < LEAST_WAIT_SHARE:
        return
    if work.workers:
        faster = next((one for one in work.predictions if one.is_faster), None)
        if faster is None:
            return
        left_ns = faster.wait_ns, faster.least_ns, faster.most_ns
        likely_ns, high_ns, low_ns = (max(0.0, work.wait_ns - ns) for ns in left_ns)
    else:
        saved_ns = (share / 2 * work.wait_ns for share in work.shares_of_longest)
        likely_ns, high_ns, low_ns = saved_ns
    low_ns *= analysis.of(run).certain_share
    of_ns = work.wait_ns / work.wait_share
    if high_ns < DOUBT_SHARE * of_ns:
        return
    longest = work.stages[0]
    yield twice_as_fast(
        longest.function,
        longest.line,
        (likely_ns, high_ns, low_ns),
        of_ns,
        f"it takes {small_percent(longest.share, 1)} of making a batch, by "
        f"{counted(work.samples, 'sample')}",
    )


def _grown(run: Run, loader: Loader) -> Iterator[Finding]:
    """Yield the growth of the memory of workers that may copy what they should share: a list whose
    objects are as large as at least half of it."""
    grown_bytes, field = max(row.grown_bytes or 0 for row in loader.rows), loader.largest
    if field is None or not MUCH_BYTES <= grown_bytes <= _MOST_OF_FIELD * field.bytes:
        return
    line = run.name_of_line(SourceLine(field.file, field.line, "")) if field.line else ""
    where = f" ({line})" if line else ""
    yield unpriced(
        "failure",
        "memory of the workers of the loader grows",
        f"by {size(grown_bytes)} in one of {loader.workers}, as each may copy the pages of "
        f"{printable(field.dataset)}.{printable(field.name)}{where}, a {field.kind} of "
        f"{field.items:,} objects, that it reads; one array or tensor would be shared",
        None,
        "pyinstrument-gpu report -v RUN",
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
