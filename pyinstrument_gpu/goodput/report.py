# SPDX-License-Identifier: Apache-2.0
"""The report of a job's life: a document, the same in sentences and tables, and as the text that
Prometheus reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from pyinstrument_gpu.aspects.startup.aspect import StartupPart
from pyinstrument_gpu.core.condition import Condition, ProgramEnd
from pyinstrument_gpu.errors import needed_for
from pyinstrument_gpu.goodput.advice import (
    CheckpointInterval,
    LifeAdvice,
    advice,
    checkpoint_interval,
    startup_parts,
)
from pyinstrument_gpu.goodput.division import IN_ORDER, Bucket
from pyinstrument_gpu.goodput.life import AttemptTimes, JobLife, StepCounts
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    counted,
    duration,
    printable,
    small_percent,
    time_text,
)
from pyinstrument_gpu.report.notes import notes_parts
from pyinstrument_gpu.report.plain import rounded

GOODPUT_VERSION = 1
"""Of the document. It rises when a field changes its meaning or goes; new fields may come."""
_MOST_PIECES = 400
_MOST_ATTEMPTS = 20
_HOUR_NS = 3600 * 10**9


@dataclass(frozen=True)
class BucketTime:
    """The time that a job spent on something.

    Attributes:
        bucket: on what.
        time_ns: these add up to the wall time exactly. Missing where it could be seen in no
            attempt: it is in the time of the others.
        percent: of the wall time, in tenths; these add up to 100.0.
        cost: at the price that was given.
    """

    bucket: str
    time_ns: int | None
    percent: float | None
    cost: float | None


@dataclass(frozen=True)
class AttemptOfJob:
    """An attempt.

    Attributes:
        attempt: its number, from 1.
        ranks, world_size: how many ranks it has runs of, and how many it had.
        began: when, by the clock of the machine of its lowest rank.
        begin_ns: since the begin of the job.
        duration_ns: from the begin of its first process to its last heartbeat.
        first_step, last_step: numbers in the whole training; missing where there was no step.
        numbered_by: how these are known.
        steps, again: how many steps it has done, and how many of them had been done before.
        ended: how, in words.
        files: its run files.
    """

    attempt: int
    ranks: int
    world_size: int
    began: str
    begin_ns: int
    duration_ns: int
    first_step: int | None
    last_step: int | None
    numbered_by: str
    steps: int
    again: int
    ended: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class LifePiece:
    """A time that was spent on one thing.

    Attributes:
        bucket: on what it mostly was.
        begin_ns: since the begin of the job.
        duration_ns: how long.
    """

    bucket: str
    begin_ns: int
    duration_ns: int


@dataclass(frozen=True)
class GoodputDocument:
    """The uses of a job's wall time, over all of its attempts.

    Attributes:
        version: of this format.
        verdict: in a sentence.
        command: of the last attempt.
        joined_by: how it is known that the attempts are of one job.
        began: when the first process did.
        is_running: whether the job goes on, so that the wall time ends now, and not at the last
            heartbeat.
        wall_ns: the wall time.
        buckets: what it was spent on.
        steps: how many there were.
        startup: the parts of all start-ups together, on the lowest rank, in words.
        checkpoints: how often they are written, and how often they should be.
        advice: what would have saved time, the most first.
        attempts: the earliest first.
        pieces: the job's life in order, without gaps.
        price_per_hour: as it was given, of all machines of the job together.
        notes: what is not known, or was left out.
    """

    version: int
    verdict: str
    command: tuple[str, ...] | None
    joined_by: str | None
    began: str
    is_running: bool
    wall_ns: int
    buckets: tuple[BucketTime, ...]
    steps: StepCounts
    startup: tuple[StartupPart, ...]
    checkpoints: CheckpointInterval | None
    advice: tuple[LifeAdvice, ...]
    attempts: tuple[AttemptOfJob, ...]
    pieces: tuple[LifePiece, ...]
    price_per_hour: float | None
    notes: tuple[str, ...]


def goodput_document(life: JobLife, price_per_hour: float | None = None) -> GoodputDocument:
    """The document of a job's life."""
    totals_ns = life.division.totals_ns
    wall_ns, begin_ns = sum(totals_ns.values()), int(life.division.boundaries_ns[0])
    interval = checkpoint_interval(life)
    parts = startup_parts(life)
    rest_ns = totals_ns[Bucket.STARTUP] - sum(time_ns for _, time_ns in parts)
    parts += [("other", rest_ns)] if rest_ns > 0 else []
    arguments = life.attempts[-1].environment.get("arguments")
    buckets = tuple(_buckets(life, price_per_hour))
    document = GoodputDocument(
        version=GOODPUT_VERSION,
        verdict=_verdict(buckets, wall_ns),
        command=tuple(arguments) if isinstance(arguments, list) and arguments else None,
        joined_by=life.joined_by or None,
        began=_date(begin_ns),
        is_running=life.attempts[-1].ended == Condition.RUNNING,
        wall_ns=wall_ns,
        buckets=buckets,
        steps=life.steps,
        startup=tuple(StartupPart(part, time_ns, ()) for part, time_ns in parts),
        checkpoints=interval,
        advice=tuple(advice(life, interval)),
        attempts=tuple(
            _attempt(one, number, begin_ns) for number, one in enumerate(life.attempts, 1)
        ),
        pieces=tuple(_pieces(life)),
        price_per_hour=price_per_hour,
        notes=life.notes,
    )
    return rounded(document)


def _buckets(life: JobLife, price_per_hour: float | None) -> Iterator[BucketTime]:
    totals_ns = life.division.totals_ns
    tenths = _tenths([totals_ns[bucket] for bucket in IN_ORDER])
    for bucket, tenth in zip(IN_ORDER, tenths, strict=True):
        name, time_ns = bucket.name.lower(), totals_ns[bucket]
        if bucket == Bucket.STRAGGLERS and not life.knows_stragglers:
            yield BucketTime(name, None, None, None)
        else:
            yield BucketTime(name, time_ns, tenth / 10, _cost(price_per_hour, time_ns))


def _cost(price_per_hour: float | None, time_ns: float) -> float | None:
    return None if price_per_hour is None else price_per_hour * time_ns / _HOUR_NS


def _tenths(times_ns: Sequence[int]) -> list[int]:
    """Tenths of a percent of their sum, that add up to 1000: what rounding down leaves goes to
    those that lost most by it."""
    whole_ns = max(1, sum(times_ns))
    found = [1000 * time_ns // whole_ns for time_ns in times_ns]
    by_loss = sorted(range(len(found)), key=lambda i: -(1000 * times_ns[i] % whole_ns))
    for i in by_loss[: 1000 - sum(found)]:
        found[i] += 1
    return found


def _date(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).isoformat()


def _clock(date: str) -> str:
    """A date as a table has it."""
    return date[:19].replace("T", " ")


def _attempt(one: AttemptTimes, number: int, begin_ns: int) -> AttemptOfJob:
    numbers = one.numbers
    end = ProgramEnd.of(one.environment)
    ended = "hung" if one.has_hung else one.ended.value
    if one.ended.value == "failed":
        ended += f" ({end.exception or f'exit code {end.exit_code}'})" if end.has_failed else ""
    return AttemptOfJob(
        attempt=number,
        ranks=one.ranks[0],
        world_size=one.ranks[1],
        began=_date(one.begin_ns),
        begin_ns=one.begin_ns - begin_ns,
        duration_ns=one.end_ns - one.begin_ns,
        first_step=int(numbers.min()) if len(numbers) else None,
        last_step=int((numbers + one.counts - 1).max()) if len(numbers) else None,
        numbered_by=one.numbered_by,
        steps=one.count(one.is_done),
        again=one.count(one.is_done & one.is_again),
        ended=ended,
        files=one.files,
    )


def _pieces(life: JobLife) -> Iterator[LifePiece]:
    """Yield the division's pieces; of very many, equal stretches with what most was spent on."""
    boundaries_ns, buckets = life.division.boundaries_ns, life.division.buckets
    if len(buckets) > _MOST_PIECES:
        ends_ns = np.linspace(boundaries_ns[0], boundaries_ns[-1], _MOST_PIECES + 1).astype(
            np.int64
        )
        sums_ns = []
        for bucket in range(len(Bucket)):
            of_bucket = np.append(0, np.cumsum(np.diff(boundaries_ns) * (buckets == bucket)))
            at = np.interp(ends_ns - boundaries_ns[0], boundaries_ns - boundaries_ns[0], of_bucket)
            sums_ns.append(np.diff(at))
        buckets, boundaries_ns = np.argmax(sums_ns, axis=0), ends_ns
    begin_ns = int(boundaries_ns[0])
    is_first = np.append(True, buckets[1:] != buckets[:-1])
    ends = np.append(boundaries_ns[:-1][is_first], boundaries_ns[-1])
    for bucket, since_ns, until_ns in zip(buckets[is_first], ends, ends[1:], strict=False):
        name = Bucket(int(bucket)).name.lower()
        yield LifePiece(name, int(since_ns) - begin_ns, int(until_ns - since_ns))


def _verdict(buckets: Sequence[BucketTime], wall_ns: int) -> str:
    by_name = {one.bucket: one for one in buckets}
    percent = by_name.pop("productive").percent
    verdict = f"{percent:.1f} % of {time_text(wall_ns)} went into productive steps"
    largest = max(by_name.values(), key=lambda one: one.time_ns or 0)
    if largest.time_ns:
        verdict += f"; most of the rest was {words_of(largest.bucket)}, {largest.percent:.1f} %"
    return f"{verdict}."


def words_of(bucket: str) -> str:
    """A bucket as a sentence has it."""
    return Bucket[bucket.upper()].words


def goodput_parts(document: GoodputDocument) -> Iterator[Part]:
    """The report in sentences and tables."""
    if document.command:
        yield Sentence(printable(shlex.join(document.command)), "title")
    yield Sentence(printable(_facts(document)))
    yield Sentence(document.verdict, "title")
    yield Sentence()
    yield _bucket_table(document)
    yield from _steps(document)
    yield from _advice(document)
    yield Sentence()
    shown = document.attempts[-_MOST_ATTEMPTS:]
    rows = [_attempt_row(one) for one in shown]
    yield table(["attempt", "ranks", "began (UTC)", "lasted", "steps", "again"], [rows])
    if len(document.attempts) > len(shown):
        more = len(document.attempts) - len(shown)
        yield Sentence(f"... and {counted(more, 'earlier attempt')}", "note")
    yield from notes_parts(document.notes)


def _facts(document: GoodputDocument) -> str:
    attempts = counted(len(document.attempts), "attempt")
    joined = "" if document.joined_by is None else f", joined {document.joined_by}"
    until = "now: it is running" if document.is_running else "its last heartbeat: it has ended"
    if document.attempts[-1].ended == Condition.LOST.value:
        until = "its last heartbeat: whether it has ended can't be seen from here"
    return f"{attempts}{joined}; from {_clock(document.began)} UTC to {until}"


def _bucket_table(document: GoodputDocument) -> Part:
    unit, has_price = Unit.fitting(document.wall_ns), document.price_per_hour is not None

    def cells(time_ns: int | None, percent: float | None, cost: float | None) -> list[str]:
        texts = [unit.text(time_ns), UNKNOWN if percent is None else f"{percent:.1f}"]
        return texts + [UNKNOWN if cost is None else f"{cost:,.2f}"] * has_price

    rows = [
        Row(
            words_of(one.bucket),
            cells(one.time_ns, one.percent, one.cost),
            share=(one.time_ns or 0) / max(1, document.wall_ns),
        )
        for one in document.buckets
    ]
    whole = cells(document.wall_ns, 100.0, _cost(document.price_per_hour, document.wall_ns))
    headers = [unit.name, "time", "%", *["cost"] * has_price]
    return table(headers, [rows, [Row("wall time", whole)]], bars=True)


def _steps(document: GoodputDocument) -> Iterator[Sentence]:
    again = f"{counted(document.steps.recomputed, 'step')} computed again"
    yield Sentence(
        f"{counted(document.steps.productive, 'productive step')}, {again}, "
        f"{document.steps.cut_off:,} cut off"
    )
    if document.startup:
        parts = ", ".join(f"{one.part} {duration(one.time_ns)}" for one in document.startup)
        yield Sentence(printable(f"Parts of start-ups: {parts}"))
    found = document.checkpoints
    if found is not None and found.fits:
        yield Sentence(
            f"A checkpoint every {duration(found.interval_ns)} fits: the best is every "
            f"{duration(found.best_low_ns)} to {duration(found.best_high_ns)}"
        )


def _advice(document: GoodputDocument) -> Iterator[Sentence]:
    if not document.advice:
        return
    yield Sentence()
    yield Sentence("What would have saved time", "title")
    for number, one in enumerate(document.advice, 1):
        low, high = (small_percent(ns, document.wall_ns) for ns in (one.low_ns, one.high_ns))
        saves = f"up to {high}" if one.low_ns <= 0 else high if low == high else f"{low} to {high}"
        yield Sentence(f"{number}. {one.about}: {saves} of the wall time{_price(document, one)}")
        yield Sentence(printable(f"   {one.evidence}"), "note")


def _price(document: GoodputDocument, one: LifeAdvice) -> str:
    low, high = (_cost(document.price_per_hour, ns) for ns in (one.low_ns, one.high_ns))
    return "" if low is None or high is None else f", {low:,.2f} to {high:,.2f}"


def _attempt_row(one: AttemptOfJob) -> Row:
    steps = "-"
    if one.first_step is not None:
        steps = f"{one.first_step:,} to {one.last_step:,}"
    ranks = f"{one.ranks:,}"
    if one.ranks != one.world_size:
        ranks += f" of {one.world_size:,}"
    cells = [ranks, _clock(one.began), duration(one.duration_ns), steps, f"{one.again:,}"]
    return Row(f"{one.attempt}", cells, note=printable(one.ended))


def prometheus_text(document: GoodputDocument) -> str:
    """The buckets and steps as gauges in the text format of Prometheus, as for node_exporter's
    textfile collector. The name of the command is a label.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """
    with needed_for("the text for Prometheus", "prometheus_client"):
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    registry = CollectorRegistry()
    command = printable(shlex.join(document.command or ()))

    def gauge(name: str, what: str, label: str, values: dict[str, float]) -> None:
        family = Gauge(f"pyinstrument_gpu_{name}", what, ["command", label], registry=registry)
        for value, number in values.items():
            family.labels(command, value).set(number)

    times_ns = {one.bucket: one.time_ns for one in document.buckets}
    seconds = {name: time_ns / 1e9 for name, time_ns in times_ns.items() if time_ns is not None}
    gauge("job_seconds", "What the wall time of a job was spent on.", "bucket", seconds)
    steps = {
        "productive": document.steps.productive,
        "recomputed": document.steps.recomputed,
        "cut_off": document.steps.cut_off,
    }
    gauge("job_steps", "Steps of all attempts of a job.", "kind", {**steps})
    ends: dict[str, float] = {}
    for one in document.attempts:
        ends[one.ended] = ends.get(one.ended, 0) + 1
    gauge("job_attempts", "Attempts of a job, by how they ended.", "ended", ends)
    text: bytes = generate_latest(registry)
    return text.decode()
