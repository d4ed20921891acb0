# SPDX-License-Identifier: Apache-2.0
"""The report that a run prints by itself: what ran, what it says, where its steps go, and what is
worth trying, on one screen. `report --verbose` has the sections in full."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pyinstrument_gpu.analysis.advice import HEADLINE_SHARE, Finding
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.core.program_facts import MASK, is_python
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, Table
from pyinstrument_gpu.parts.words import (
    Unit,
    capitalised,
    counted,
    duration,
    printable,
    small_percent,
)
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.document import Document
from pyinstrument_gpu.report.phases import PhaseCalls, PhaseInSteps
from pyinstrument_gpu.report.run_info import RunInfo, place_facts
from pyinstrument_gpu.report.slow_steps import slow_summary
from pyinstrument_gpu.report.steps import OUTSIDE_SHARE, StepTimes, outside_words

MOST_LINES = 25
"""Of the whole, at 80 columns or more."""
_MOST_TRIES = 3
_MOST_LINES_ON = 8
_MOST_ASKED = 4
_MOST_WARNINGS = 3
_MOST_OUTSIDE = 2
_SHOWN_PHASE_SHARE = 0.05
"""A phase that takes more of the step is shown before lines on other things."""
_SMALL_PHASE_SHARE = 0.01
"""One that takes less gives way to them."""
_SHARE_THAT_STAYS = 0.5
"""A line on more of the elapsed time is the last to give way."""
_PROGRAM_LENGTH = 40


@dataclass(frozen=True)
class Summary:
    """The report in blocks, in the order in which they are read.

    Attributes:
        ran: what ran, and what changes how the rest is to be read.
        verdict: what the run says.
        times: where the step goes.
        tries: what is worth trying.
        others: what else there is to say, in a line for each thing.
    """

    ran: Sequence[Part]
    verdict: Sequence[Part]
    times: Sequence[Part]
    tries: Sequence[Part]
    others: Sequence[Part]


def summary(document: Document, width: int) -> list[Part]:
    """The parts of the report, of which those of least weight give way until all of them fit on a
    screen of that width."""
    parts: list[Part] = []
    shares = [one.share or 0.0 for one in document.phases]
    large, small = (
        sum(share >= least for share in shares)
        for least in (_SHOWN_PHASE_SHARE, _SMALL_PHASE_SHARE)
    )
    weights = [line.weight for line in _lines(document)]
    stay = min(sum(weight > 0 for weight in weights), _MOST_ASKED)
    for size in _sizes(stay, weights.count(_IS_MOST), large, small):
        found = summary_of(document, *size)
        parts = [*found.ran, *found.verdict]
        for block in (found.times, found.tries, found.others):
            parts += [Sentence(), *block] if block else []
        parts.append(Sentence(_look_on(document), "note"))
        if len(printed(parts, width).splitlines()) <= MOST_LINES:
            break
    return parts


def _sizes(stay: int, most: int, large: int, not_small: int) -> Iterator[tuple[int, int, int]]:
    """Yield how many phases, things to try and other lines are shown: from all on, the phases give
    way to a few, and to those that are not small, then the lines, of which some stay, then what is
    left but for those on most of the run. Of the phases large ones remain as long as there is room
    beside the fewest of other things."""
    yield from ((max(phases, large), _MOST_TRIES, _MOST_LINES_ON) for phases in range(12, 7, -1))
    few = max(7, large)
    not_small = min(max(3, not_small), few)
    yield from ((phases, _MOST_TRIES, _MOST_LINES_ON) for phases in range(few, not_small - 1, -1))
    few = not_small
    lines = range(_MOST_LINES_ON, max(stay, 2) - 1, -1)
    yield from ((few, _MOST_TRIES, count) for count in lines)
    for phases in range(6, 2, -1):
        yield min(few, max(phases, large)), _MOST_TRIES, max(stay, 2)
    yield from ((phases, _MOST_TRIES, max(stay, 1)) for phases in range(few, 2, -1))
    yield from ((3, tries, max(stay, 1)) for tries in range(_MOST_TRIES, 0, -1))
    most = max(min(most, stay), 1)
    yield from ((phases, tries, most) for tries in (1, 0) for phases in (3, 2, 1))


def summary_of(
    document: Document, phases: int = 12, tries: int = _MOST_TRIES, lines: int = _MOST_LINES_ON
) -> Summary:
    """The blocks with so many phases, things to try and other lines at most."""
    return Summary(
        ran=[Sentence(printable(_what_ran(document))), *_warnings(document)],
        verdict=[*_verdict(document)],
        times=[*_times(document, phases)],
        tries=[*_worth_trying(document, tries)],
        others=[line.part for line in _heaviest(document, lines)],
    )


def _what_ran(document: Document) -> str:
    run = document.run
    program = _program(run)
    facts = [program] if program else []
    facts.append(f"{document.step_words} in {duration(run.duration_ns)}")
    facts += place_facts(run)
    if run.gpus and not run.device_timing:
        facts.append("device timing off")
    return ", ".join(facts)


def _program(run: RunInfo) -> str:
    """The program and its arguments, as far as there is room for them."""
    words = [*(run.arguments or run.command or ())]
    if len(words) > 1 and is_python(words[0]):
        del words[0]
    if not words:
        return ""
    folder, name = os.path.split(words[0])
    # `python -m package` runs this file of it.
    words[0] = os.path.basename(folder) if name == "__main__.py" and folder else name or words[0]
    text = shlex.join(words)
    return text if len(text) <= _PROGRAM_LENGTH else text[: _PROGRAM_LENGTH - 3] + "..."


def _warnings(document: Document) -> Iterator[Part]:
    """Yield what changes how the rest is to be read."""
    notes = document.notes
    yield from (Sentence(f"! {printable(note)}", "warn") for note in notes[:_MOST_WARNINGS])
    more = len(notes) - _MOST_WARNINGS
    if more > 0:
        yield Sentence(f"! and {counted(more, 'more note')} (report --verbose)", "warn")
    dropped = [one for one in document.recorder.dropped if "statistics" not in (one.what or "")]
    if dropped:
        kinds = "; ".join(f"{one.count:,} {one.what or one.cause}" for one in dropped)
        yield Sentence(f"! Not recorded: {printable(kinds)}", "warn")


def _verdict(document: Document) -> Iterator[Part]:
    """The verdict, which is about the first failure if there is one, and the others."""
    yield Sentence(printable(document.verdict), "title")
    failures = [one for one in document.findings if one.kind == "failure"]
    for one in failures[1:]:
        yield Sentence(printable(f"{capitalised(one.about)}: {one.evidence}."), "failure")
    yield from (Sentence(printable(capitalised(one.edit))) for one in failures if one.edit)


def _times(document: Document, most: int) -> Iterator[Part]:
    """Yield where the step goes; without steps, the phases that take longest."""
    if document.run.is_preview:
        return
    if document.steps is not None:
        yield from _step_table(document, document.steps, most)
    elif document.phases_without_steps:
        yield _call_table(document.phases_without_steps, most)
        yield from _more(len(document.phases_without_steps) - most)


def _step_table(document: Document, steps: StepTimes, most: int) -> Iterator[Part]:
    """Yield the table of the step without columns that say nothing."""
    unit = Unit.brief(steps.mean_ns)
    shown = _largest(document, most)
    columns: dict[str, list[float | None]] = {
        "mean": [phase.host_ns for phase in shown],
        "p95": [phase.p95_ns for phase in shown],
    }
    if any(len(names_of(phase.path)) > 1 for phase in shown):
        columns["self"] = [phase.self_ns for phase in shown]
    columns["device"] = [phase.device_ns for phase in shown]
    timed = columns["device"].count(None) < len(shown)
    columns["blocked"] = [phase.blocked_ns for phase in shown]
    columns = {
        name: times_ns
        for name, times_ns in columns.items()
        # Without a device nothing is blocked; with one, it is worth saying that nothing was.
        if name == "mean"
        or (any(times_ns) if name == "blocked" and not timed else times_ns.count(None) < len(shown))
    }
    rows = {}
    for place, phase in enumerate(shown):
        times = [unit.text(times_ns[place]) for times_ns in columns.values()]
        rows[phase.path] = Row("", [*times, _share(phase.share)], share=phase.share)

    def sum_row(name: str, mean_ns: float | None, p95_ns: float | None, is_step: bool) -> Row:
        is_part = mean_ns is not None and 0 <= mean_ns <= steps.mean_ns > 0
        of_step = mean_ns / steps.mean_ns if mean_ns is not None and is_part else None
        known = {"mean": mean_ns, "p95": p95_ns}
        cells = [unit.text(known[one]) if known.get(one) is not None else "" for one in columns]
        return Row(name, [*cells, _share(of_step)], emphasis="bold" if is_step else "")

    between_ns = None if steps.outside_phases_ns is None else steps.outside_phases_ns / steps.count
    sums = [
        sum_row("outside phases", between_ns, None, False),
        sum_row("step", steps.mean_ns, steps.p95_ns, True),
    ]
    headers = [f"{unit.name} per step", *columns, "%"]
    table, *remarks = phase_table(headers, rows, sums if rows else sums[1:], bars=True)
    yield table
    yield from remarks
    yield from _more(len(document.phases) - len(shown))


def _share(of_step: float | None) -> str:
    return "-" if of_step is None else f"{100 * of_step:.0f}"


def _more(phases: int) -> Iterator[Sentence]:
    if phases > 0:
        yield Sentence(f"... and {counted(phases, 'smaller phase')} (report --verbose)", "note")


def _largest(document: Document, most: int) -> list[PhaseInSteps]:
    """Return those that take most of the step, in the order in which they run, so many at most with
    the phases around them, and in any case the one that takes most."""
    by_path = {phase.path: phase for phase in document.phases}
    chosen: set[str] = set()
    for phase in sorted(document.phases, key=lambda one: one.host_ns or 0.0, reverse=True):
        names = names_of(phase.path)
        around = {"/".join(names[: depth + 1]) for depth in range(len(names))}
        if not chosen or len(chosen | around) <= most:
            chosen |= around
    return [phase for path, phase in by_path.items() if path in chosen]


def _call_table(phases: Sequence[PhaseCalls], most: int) -> Table:
    shown = sorted(phases, key=lambda one: one.total_ns, reverse=True)[:most]
    unit = Unit.brief(shown[0].total_ns)
    rows = [
        Row(phase.path, [f"{phase.calls:,}", unit.text(phase.total_ns), unit.text(phase.mean_ns)])
        for phase in shown
    ]
    return Table(["phase", "calls", f"total {unit.name}", f"mean {unit.name}"], [rows])


def worth_trying(document: Document, most: int = _MOST_TRIES) -> list[Finding]:
    """The changes that could gain most, each once, those that are certain first."""
    found = (one for one in document.findings if one.kind != "failure" and _is_worth_a_line(one))
    return [*islice(found, most)]


def _worth_trying(document: Document, most: int) -> Iterator[Part]:
    for number, one in enumerate(worth_trying(document, most), 1):
        if number == 1:
            yield Sentence("Worth trying", "title")
        edit = "" if one.edit is None else f": {one.edit}"
        yield Sentence(printable(f"{number}. {capitalised(one.about)}{edit} ({gain(one)})"))
    command = try_command(document.run)
    # It is the first to give way.
    if most >= _MOST_TRIES and command is not None and worth_trying(document):
        yield Sentence(printable(f"Edits like these are tried by: {command}"), "note")


def try_command(run: RunInfo) -> str | None:
    """Return the command that tries edits of the program; None where it can't be told from the run:
    for a module, several ranks, or arguments that were masked."""
    words, command = run.arguments or (), run.command or ()
    is_script = bool(words) and words[0].endswith(".py") and words[0] in command
    if not is_script or run.world_size not in (None, 1) or any(MASK in word for word in words):
        return None
    return f"pyinstrument-gpu try {shlex.join(words)}"


def _is_worth_a_line(one: Finding) -> bool:
    return one.high_ns is None or one.high_ns >= HEADLINE_SHARE * (one.of_ns or 0.0)


def gain(one: Finding) -> str:
    """Return what a change saves, as far as the run can tell."""
    if one.low_ns is None or one.high_ns is None or not one.of_ns:
        return "what it saves is unknown"
    low, high = (small_percent(ns, one.of_ns) for ns in (one.low_ns, one.high_ns))
    if not one.is_certain:
        return f"may save {high} of the {one.of}; this run can't tell"
    return f"saves {high if low == high else f'{low} to {high}'} of the {one.of}"


_IS_ASKED_FOR = 1
_IS_MOST = 2
"""It is about most of the elapsed time."""


@dataclass(frozen=True)
class _Line:
    """A line on something else.

    Attributes:
        weight: those of less give way first.
    """

    part: Part
    weight: int = 0


def _heaviest(document: Document, most: int) -> Iterator[_Line]:
    """Yield so many lines at most, in their order."""
    lines = [*_lines(document)]
    ranked = sorted(range(len(lines)), key=lambda place: -lines[place].weight)
    yield from (lines[place] for place in sorted(ranked[:most]))


def _lines(document: Document) -> Iterator[_Line]:
    """Yield what else there is to say, in a line for each thing."""
    yield from _of_aspects(document, come_first=True)
    steps, duration_ns = document.steps, document.run.duration_ns
    if steps is not None and not document.run.is_preview:
        is_most = steps.outside_ns > _SHARE_THAT_STAYS * duration_ns
        yield _Line(Sentence(printable(_outside(document, steps))), _IS_MOST * is_most)
        yield from map(_Line, slow_summary(document.slow_steps))
    yield from _of_aspects(document, come_first=False)
    cost = document.recorder.share_of_step
    if cost is not None and not document.run.is_preview:
        share = small_percent(cost, 1)
        share = f"less than {share[1:]}" if share.startswith("<") else f"about {share}"
        yield _Line(Sentence(f"Recording: {share} of the step", "note"))


def _of_aspects(document: Document, come_first: bool) -> Iterator[_Line]:
    for aspect in aspects():
        section = document.sections.get(aspect.name)
        is_shown = aspect.in_preview or not document.run.is_preview
        if section and is_shown and aspect.comes_first == come_first:
            is_most = aspect.share_of_run(section, document) > _SHARE_THAT_STAYS
            for part in aspect.summary(section, document):
                yield _Line(part, _IS_MOST if is_most else _IS_ASKED_FOR * come_first)


def _outside(document: Document, steps: StepTimes) -> str:
    text = outside_words(steps, document.run.duration_ns)
    inside = [
        one
        for one in document.phases_outside
        if len(names_of(one.path)) == 1
        and not one.during_steps
        and one.total_ns >= OUTSIDE_SHARE * steps.outside_ns
    ]
    inside.sort(key=lambda one: one.total_ns, reverse=True)
    named = [f"{duration(one.total_ns)} {one.path}" for one in inside[:_MOST_OUTSIDE]]
    return f"{text}; {', '.join(named)}" if named else text


def _look_on(document: Document) -> str:
    file = "RUN" if document.file is None else shlex.quote(document.file)
    return f"More: pyinstrument-gpu report -v {file}, or --html for a page"
