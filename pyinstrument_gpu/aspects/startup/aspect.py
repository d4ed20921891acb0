# SPDX-License-Identifier: Apache-2.0
"""Start-up as an aspect of a run: how it is read, and what a report says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyinstrument_gpu.aspects.startup import (
    BATCH,
    CHECKPOINT,
    DEVICE,
    GROUP,
    IMPORT,
    MODEL,
    NAME,
    OPTIMIZER,
    WORKERS,
)
from pyinstrument_gpu.aspects.startup.data import Startup
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import Unit, counted, duration, percent, printable

_PYTHON, _OWN, _BEFORE, _COMPILE = "python", "run", "before", "compile"
PART_WORDS = {
    _PYTHON: "Python's start",
    _OWN: "pyinstrument-gpu run itself",
    _BEFORE: "before the recording",
    IMPORT: "imports",
    MODEL: "making modules",
    CHECKPOINT: "loading checkpoints",
    DEVICE: "moving to the device",
    OPTIMIZER: "making optimizers",
    GROUP: "making process groups",
    WORKERS: "starting loader workers",
    BATCH: "fetching batches",
    _COMPILE: "compilation",
}
_OWN_PACKAGE = "pyinstrument_gpu"
_LEAST_NS = 2_000_000_000
_LEAST_SHARE = 0.05
"""Of the run, from which on start-up has a line of the report that a run prints by itself."""
_LEAST_PART = 0.05
_LEAST_ITEM = 0.01
_MOST_NAMED = 3


@dataclass(frozen=True)
class StartupItem:
    """An import, or something else that took its time.

    Attributes:
        name: of the module that was imported, or the class of what was made.
        time_ns: without what else of the start-up lies in it.
        caused_by: the class of what was being made as it was imported.
        place: the line of the program that did it, or else of the library.
    """

    name: str | None
    time_ns: int
    caused_by: str | None
    place: str | None


@dataclass(frozen=True)
class StartupPart:
    """A part of the time.

    Attributes:
        part: what it is.
        time_ns: without what else of the start-up lies in it.
        items: those of at least a hundredth of all, the longest first.
    """

    part: str
    time_ns: int
    items: tuple[StartupItem, ...]


@dataclass(frozen=True)
class StartupTimes:
    """The times of a program before its first step. The parts and what is not covered add up.

    Attributes:
        total_ns: from the start of the process, or from that of the recording where it is unknown.
        is_whole: whether it is from the start of the process.
        parts: the longest first.
        not_covered_ns: what is known of no part.
        first_step_ns: how long the first step took; None if it did not end.
        first_step_parts: those that take a twentieth of it or more.
        lost: times that did not fit, which are not covered.
        not_seen: parts of which some could not be observed.
    """

    total_ns: int
    is_whole: bool
    parts: tuple[StartupPart, ...]
    not_covered_ns: int
    first_step_ns: int | None
    first_step_parts: tuple[StartupPart, ...]
    lost: int | None
    not_seen: tuple[str, ...]


class _Span(NamedTuple):
    part: str
    name: str
    begin_ns: int
    end_ns: int
    place: str | None = None


def startup_times(run: Run) -> StartupTimes | None:
    """Return the times; None where no step began, or start-up was not watched."""
    found, steps = run.startup, run.steps.array
    anchor = run.environment.get("anchor", run.anchor)
    zero_ns = began_ns(anchor, "monotonic_ns")
    if found is None or zero_ns is None or not len(steps) or steps["index"][0] != 0:
        return None
    first_ns, last_ns = int(steps["begin_ns"][0]) + zero_ns, int(steps["end_ns"][0]) + zero_ns
    begin_ns = zero_ns if found.process_ns is None else found.process_ns
    if not begin_ns < first_ns:
        return None
    spans = [*_spans(run, found, zero_ns, begin_ns)]
    parts = _divided(spans, begin_ns, first_ns)
    room_ns = first_ns - begin_ns - sum(one.time_ns for one in parts)
    for part, short_ns in found.short_ns.items():
        # It may lie in modules that were being made, so it is at most what is left.
        short_ns = min(short_ns, room_ns)
        room_ns -= short_ns
        parts = _with_short(parts, part, short_ns)
    has_ended = last_ns > first_ns
    return StartupTimes(
        total_ns=first_ns - begin_ns,
        is_whole=found.process_ns is not None,
        parts=tuple(sorted(parts, key=lambda one: -one.time_ns)),
        not_covered_ns=room_ns,
        first_step_ns=last_ns - first_ns if has_ended else None,
        first_step_parts=tuple(
            StartupPart(one.part, one.time_ns, ())
            for one in (_divided(spans, first_ns, last_ns) if has_ended else ())
            if one.time_ns >= _LEAST_PART * (last_ns - first_ns)
        ),
        lost=found.lost or None,
        not_seen=tuple(PART_WORDS[part] for part in found.not_seen),
    )


def _spans(run: Run, found: Startup, zero_ns: int, begin_ns: int) -> Iterator[_Span]:
    if found.launched_ns is not None and found.program_ns is not None:
        yield _Span(_PYTHON, "", begin_ns, found.launched_ns)
        yield _Span(_OWN, "", found.launched_ns, found.program_ns)
    else:
        yield _Span(_BEFORE, "", begin_ns, found.watched_ns)
    for one in found.intervals:
        line = None if one.file is None else SourceLine(one.file, one.line or 0, "")
        place = None if line is None else run.name_of_line(line)
        is_own = one.part == IMPORT and one.name.partition(".")[0] == _OWN_PACKAGE
        yield _Span(_OWN if is_own else one.part, one.name, one.begin_ns, one.end_ns, place)
    compilations = run.compilations
    for compilation in () if compilations is None else compilations.compilations:
        at_ns = compilation.begin_ns + zero_ns
        name = compilation.function or ""
        yield _Span(_COMPILE, name, at_ns, at_ns + compilation.duration_ns)


def _divided(spans: Sequence[_Span], begin_ns: int, end_ns: int) -> list[StartupPart]:
    """Divide a time into parts: each moment counts for what began last of that which goes on."""
    inside = [one for one in spans if one.begin_ns < end_ns and one.end_ns > begin_ns]
    boundaries = {begin_ns, end_ns}
    boundaries.update(ns for one in inside for ns in (one.begin_ns, one.end_ns))
    known = sorted(ns for ns in boundaries if begin_ns <= ns <= end_ns)
    taken_ns: dict[tuple[str, str, str | None, str | None], int] = {}
    for here_ns, next_ns in pairwise(known):
        open_now = [one for one in inside if one.begin_ns <= here_ns and one.end_ns >= next_ns]
        if not open_now:
            continue
        open_now.sort(key=lambda one: (one.begin_ns, -one.end_ns))
        last = open_now[-1]
        makers = [one.name for one in open_now[:-1] if one.part in (MODEL, OPTIMIZER, CHECKPOINT)]
        key = last.part, last.name, makers[-1] if makers else None, last.place
        taken_ns[key] = taken_ns.get(key, 0) + next_ns - here_ns
    parts: dict[str, list[StartupItem]] = {}
    for (part, name, maker, place), time_ns in taken_ns.items():
        parts.setdefault(part, []).append(StartupItem(name or None, time_ns, maker or None, place))
    return [
        StartupPart(
            part,
            sum(item.time_ns for item in items),
            tuple(
                item
                for item in sorted(items, key=lambda item: -item.time_ns)
                if (item.name or item.place) and item.time_ns >= _LEAST_ITEM * (end_ns - begin_ns)
            ),
        )
        for part, items in parts.items()
    ]


def _with_short(parts: Sequence[StartupPart], name: str, short_ns: int) -> list[StartupPart]:
    if not short_ns:
        return [*parts]
    known = [one for one in parts if one.part == name] or [StartupPart(name, 0, ())]
    longer = StartupPart(name, known[0].time_ns + short_ns, known[0].items)
    return [*(one for one in parts if one.part != name), longer]


class StartupAspect(DocumentAspect[Run, StartupTimes]):
    """The work of a program before its first step."""

    name = NAME
    document = Startup
    noted = "the start-up"
    heading = "Start-up"
    section_type = StartupTimes | None
    about = "what the program did before its first step."
    in_preview = False
    most_rows = 5

    def section(self, run: Run) -> StartupTimes | None:
        return startup_times(run)

    def share_of_run(self, times: StartupTimes, document: ReportedRun) -> float:
        return times.total_ns / max(1, document.duration_ns + _before_ns(times))

    def summary(self, times: StartupTimes, document: ReportedRun) -> Iterator[Part]:
        """Yield a line where it is long, and most of it is known."""
        if times.total_ns < _LEAST_NS or self.share_of_run(times, document) < _LEAST_SHARE:
            return
        before_ns = sum(one.time_ns for one in times.parts if one.part == _BEFORE)
        if 2 * (before_ns + times.not_covered_ns) > times.total_ns:
            return
        named = [
            text
            for time_ns, text in sorted(_named(times), key=lambda one: -one[0])[:_MOST_NAMED]
            if time_ns >= _LEAST_PART * times.total_ns
        ]
        yield Sentence(printable(f"{_lead(times)}: {', '.join(named)}{_first_step(times)}"))

    def parts(self, times: StartupTimes, document: ReportedRun) -> Iterator[Part]:
        """Yield each part, with what took longest in it."""
        yield Sentence()
        yield Sentence(_lead(times) + _first_step(times), "title")
        unit = Unit.fitting(times.total_ns)

        def row(name: str, time_ns: int, depth: int = 0, note: str = "") -> Row:
            cells = [unit.text(time_ns), percent(time_ns, times.total_ns)]
            return Row(printable(name), cells, depth, printable(note))

        rows = []
        for part in times.parts:
            rows.append(row(PART_WORDS[part.part], part.time_ns))
            for item in part.items:
                if item.name:
                    rows.append(row(item.name, item.time_ns, 1, _note(item)))
        sums = [
            row("not covered", times.not_covered_ns),
            row("until the first step", times.total_ns),
        ]
        yield table([unit.name, "time", "%"], [rows, sums])
        if times.lost:
            yield Sentence(f"{counted(times.lost, 'more time')} did not fit", "warn")

    def unknown(self, run: Run) -> Iterable[str]:
        times = self.section(run)
        before = [] if times is None else [one for one in times.parts if one.part == _BEFORE]
        if before and before[0].time_ns >= _LEAST_NS:
            yield (
                f"Start-up: {duration(before[0].time_ns)} before the recording began: "
                "`pyinstrument-gpu run` breaks it down."
            )
        if times is not None and times.not_seen:
            yield (
                "Start-up: this version of Python or torch is not built as expected, so "
                f"{', '.join(times.not_seen)} may be missing in it."
            )


def _before_ns(times: StartupTimes) -> int:
    """Return what of it lies before the recording, nearly."""
    return sum(one.time_ns for one in times.parts if one.part in (_PYTHON, _OWN, _BEFORE))


def _lead(times: StartupTimes) -> str:
    begin = "the process" if times.is_whole else "the recording"
    return f"Start-up: {duration(times.total_ns)} from the start of {begin} to the first step"


def _first_step(times: StartupTimes) -> str:
    """Return what the first step was long for, if it was."""
    longest = max(times.first_step_parts, key=lambda one: one.time_ns, default=None)
    if longest is None or times.first_step_ns is None or times.first_step_ns < _LEAST_NS:
        return ""
    part = f"{duration(longest.time_ns)} of it {PART_WORDS[longest.part]}"
    return f"; the first step {duration(times.first_step_ns)}, {part}"


def _named(times: StartupTimes) -> Iterator[tuple[int, str]]:
    """The parts in words, of imports each by itself."""
    yield times.not_covered_ns, f"{duration(times.not_covered_ns)} not covered"
    for part in times.parts:
        if part.part != IMPORT:
            yield part.time_ns, f"{duration(part.time_ns)} {PART_WORDS[part.part]}"
        for item in part.items if part.part == IMPORT else ():
            by = f" imported by {item.caused_by}" if item.caused_by else " imported"
            yield item.time_ns, f"{duration(item.time_ns)} {item.name}{by}"


def _note(item: StartupItem) -> str:
    by = f"by {item.caused_by}" if item.caused_by else ""
    return f"({', '.join(filter(None, [by, item.place]))})" if by or item.place else ""


ASPECT = StartupAspect()
