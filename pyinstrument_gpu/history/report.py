# SPDX-License-Identifier: Apache-2.0
"""The report of a history, in at most some twenty lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pyinstrument_gpu.analysis.differences import Difference
from pyinstrument_gpu.history.history import (
    HistoryChange,
    HistoryDocument,
    ProgramHistory,
    SeriesChange,
)
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    capitalised,
    counted,
    duration,
    printable,
    rate,
    size,
    small_percent,
)

_MOST_PROGRAMS = 3
_MOST_CHANGES = 3
_MOST_SERIES = 3
_MOST_FACTS = 3
_MOST_NAMES = 8
_COMMIT_DIGITS = 8


def history_parts(document: HistoryDocument) -> Iterator[Part]:
    """The report in sentences and tables."""
    for program in document.programs[:_MOST_PROGRAMS]:
        yield from program_parts(program, _MOST_CHANGES)
        yield Sentence()
    if not document.programs:
        yield Sentence("No run in the store has a complete step.")
    if len(document.programs) > _MOST_PROGRAMS:
        more = counted(len(document.programs) - _MOST_PROGRAMS, "more program")
        yield Sentence(f"... and {more}, which --json and --html have", "note")
    yield Sentence(error_rate(document), "note")
    for note in document.notes:
        yield Sentence(printable(note), "warn")


def error_rate(document: HistoryDocument) -> str:
    """Return how often a report is wrong, in words."""
    return (
        f"Of histories in which nothing changed, at most {100 * document.error:.3g} % have a "
        "report that names a change"
    )


def program_parts(program: ProgramHistory, most: int) -> Iterator[Part]:
    """Yield what is said of a program."""
    began, ended = (_day(date, program) for date in (program.began, program.ended))
    yield Sentence(
        printable(
            f"{program.program}: {counted(program.runs, 'run')} on "
            f"{counted(program.hosts, 'host')}{_in_turn(program)}, {began} to {ended}"
        ),
        "title",
    )
    if not program.series:
        yield Sentence("Too few runs to tell whether anything changed: it takes six.")
        return
    if not program.changes:
        series = ", ".join(program.series[:_MOST_NAMES])
        more = len(program.series) - _MOST_NAMES
        series += f" and {more} others" if more > 0 else ""
        yield Sentence(printable(f"No change was found in {series}."))
        yield from _visible(program)
        return
    shown = program.changes[:most]
    for change in shown:
        yield Sentence(printable(capitalised(f"{sentence(change, program)}.")))
    if len(program.changes) > len(shown):
        earlier = counted(len(program.changes) - len(shown), "earlier change")
        yield Sentence(f"... and {earlier}", "note")
    rows = [_row(one) for one in shown[0].series[:_MOST_SERIES]]
    yield from _visible(program)
    yield table([f"change of {_day(shown[0].since, program)}", "before", "after"], [rows])


def _in_turn(program: ProgramHistory) -> str:
    texts = program.configurations
    if not texts:
        return ""
    more = len(texts) - _MOST_FACTS
    named = "; ".join(texts[:_MOST_FACTS]) + (f" and {more} more" if more > 0 else "")
    return f" in {counted(len(texts), 'configuration')} ({named})"


def _visible(program: ProgramHistory) -> Iterator[Sentence]:
    """Yield the premise of "no change": that one would have been seen."""
    runs = counted(program.last_week, "run")
    if program.visible is None:
        yield Sentence(f"Too few runs tell whether there is a change since a week ago ({runs}).")
        return
    yield Sentence(
        f"A change of {100 * program.visible:.1f} % or more in {program.series[0]} since a week "
        f"ago ({runs}) would probably have been found."
    )


def sentence(change: HistoryChange, program: ProgramHistory) -> str:
    """A change in words: since when, from which commit on, what, and what explains it."""
    series = ", ".join(series_text(one) for one in change.series[:_MOST_SERIES])
    more = len(change.series) - _MOST_SERIES
    series += f" and {more} more" if more > 0 else ""
    return f"{_since(change, program)}: {series}{_explained(change)}"


def series_text(one: SeriesChange) -> str:
    """Return a series in words: "backward +4.0 % (2.9 to 5.1)"."""
    points = " points" if one.unit == "share" else ""
    text = f"{one.name} {100 * one.change:+.1f} %{points}"
    if one.low is None or one.high is None:
        return f"{text} (too few runs for an interval)"
    return f"{text} ({100 * one.low:.1f} to {100 * one.high:.1f})"


def _since(change: HistoryChange, program: ProgramHistory) -> str:
    earliest, latest = (_day(date, program) for date in (change.earliest, change.latest))
    when = f"since {earliest}"
    if earliest != latest:
        when = f"since some time from {earliest} to {latest}"
    commits = [one[:_COMMIT_DIGITS] for one in change.commits]
    if len(commits) == 1:
        return f"{when}, commit {commits[0]}"
    if commits:
        return f"{when}, one of {len(commits)} commits from {commits[0]} to {commits[-1]}"
    return f"{when}, with no new commit" if change.is_commit_known else when


def _explained(change: HistoryChange) -> str:
    texts = []
    if change.changed:
        facts = ", ".join(map(_fact_text, change.changed[:_MOST_FACTS]))
        more = len(change.changed) - _MOST_FACTS
        facts += f" and {more} more" if more > 0 else ""
        texts.append(f"at the same point changed {facts}, which may be why")
    if change.same:
        texts.append(f"not explained by {_either(change.same)}")
    if change.unknown:
        texts.append(f"{_either(change.unknown)} can't be ruled out")
    return "".join(f"; {text}" for text in texts)


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _fact_text(one: Difference) -> str:
    return f"{one.what} ({', '.join(one.before)} to {', '.join(one.after)})"


def _day(date: str, program: ProgramHistory) -> str:
    """Return a day as "12 Nov", with the year where the runs are of several."""
    day = datetime.fromisoformat(date)
    year = f" {day.year}" if program.began[:4] != program.ended[:4] else ""
    return f"{day.day} {day:%b}{year}"


def _row(one: SeriesChange) -> Row:
    return Row(one.name, [value_text(one.unit, one.before), value_text(one.unit, one.after)])


def value_text(unit: str, value: float | None) -> str:
    """A value of a series."""
    if value is None:
        return UNKNOWN
    if unit == "bytes":
        return size(value)
    if unit == "share":
        return small_percent(value, 1)
    return duration(value) if unit == "ns" else rate(value)
