# SPDX-License-Identifier: Apache-2.0
"""Results as a page: the machine, the goals, and a table for every group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks import titles
from benchmarks.board import Board, duration
from benchmarks.goals import GOALS
from benchmarks.gpu.run import PARTS
from benchmarks.row import MemoryRow, Row, StepRow

_GPU_ONLY_AFTER = 3
"""The first parts of `make gpu` build, describe and test; the others measure."""


def markdown(board: Board, plot: str | None) -> str:
    """The whole page.

    Args:
        plot: the name of the picture beside the page, or None.
    """
    return "\n".join(_lines(board, plot)) + "\n"


def _lines(board: Board, plot: str | None) -> Iterator[str]:
    machine = board.machine
    yield f"# {machine['cpu']}, {machine['date']}"
    yield ""
    for key, value in machine.items():
        yield f"* {key}: {'not installed' if value is None else value}"
    yield f"* the whole took {board.seconds:.0f} s"
    yield ""
    yield "How it is measured stands in [benchmarks/README.md](../README.md)."
    if plot is not None:
        yield ""
        yield f"![What a phase and a training step cost, beside the peers]({plot})"
    yield ""
    yield "## Goals"
    yield ""
    yield from _goals(board)
    for group in titles.GROUPS:
        races = {title: rows for title, rows in board.races.items() if titles.group(title) == group}
        if races:
            yield ""
            yield f"## {group.capitalize()}"
        for title, rows in races.items():
            yield ""
            yield f"**{_subtitle(title)}**"
            yield ""
            yield from _race(rows)
    if board.steps:
        yield ""
        yield "## Step"
        yield ""
        yield (
            "The difference is the median over the rounds, with its 95 % interval; one that is no "
            "larger than the floor's, or whose interval holds 0, is none that was seen. *Counted* "
            "is the number of phases times what one costs in the first table of the group Phase."
        )
        for title, step_rows in board.steps.items():
            yield ""
            yield f"**{_subtitle(title)}**"
            yield ""
            yield from _steps(step_rows, board)
    if board.memory:
        yield ""
        yield "## Memory"
        yield ""
        yield (
            "Each in a process of its own. Who is not here keeps nothing of a use; the pairs of "
            "events do, but need a GPU."
        )
        yield ""
        yield from _memory(board.memory)
    yield ""
    yield "## On a GPU"
    yield ""
    yield "`make gpu` measures what needs one, with a runner and a page of its own:"
    yield ""
    for part in PARTS[_GPU_ONLY_AFTER:]:
        yield f"* {part.name}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> Iterator[str]:
    """A table whose first column is text, the next so many numbers, the rest text."""
    yield f"| {' | '.join(headings)} |"
    rest = len(headings) - 1 - numbers
    yield f"|---|{'---:|' * numbers}{'---|' * rest}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _subtitle(title: str) -> str:
    subtitle = title.partition(":")[2].strip()
    return subtitle[:1].upper() + subtitle[1:]


def _goals(board: Board) -> Iterator[str]:
    rows = []
    for goal in GOALS:
        outcome = goal.outcome(board)
        rows.append((goal.what, goal.target, outcome.measured, f"**{outcome.verdict}**"))
    yield from table(("", "goal", "measured", ""), rows, 0)


def _race(rows: Sequence[Row]) -> Iterator[str]:
    notes = any(row.note for row in rows)
    goals = any(row.goal is not None for row in rows)
    headings = ["", "best", "median", "ours / this, best", "by median"]
    headings += (["goal"] if goals else []) + (["more or less than ours"] if notes else [])

    def cells(row: Row) -> list[str]:
        goal = "" if row.goal is None else f"<= {row.goal:.3g}: {row.verdict or 'not measured'}"
        tail = ([goal] if goals else []) + ([row.note] if notes else [])
        if row.best_ns is None or row.median_ns is None:
            return [f"{row.label} (missing: {row.missing})", "", "", "", "", *tail]
        ratios = (row.best_ratio, row.median_ratio)
        times = (duration(row.best_ns), duration(row.median_ns))
        shown = ("" if ratio is None else f"{ratio:.3g}" for ratio in ratios)
        return [row.label, *times, *shown, *tail]

    yield from table(headings, map(cells, rows), 4)


def _steps(rows: Sequence[StepRow], board: Board) -> Iterator[str]:
    costs_ns = {row.label: row.median_ns for row in board.races.get(titles.PHASE, [])}

    def cells(row: StepRow) -> list[str]:
        if row.step_ns is None:
            return [f"{row.label} (missing: {row.missing})", "", "", "", "", row.note]
        difference = interval = counted = ""
        if row.difference is not None and row.low is not None and row.high is not None:
            difference = f"{100 * row.difference:+.2f} %"
            interval = f"{100 * row.low:+.2f} to {100 * row.high:+.2f} %"
        use_ns = costs_ns.get(row.label)
        if row.marks and use_ns is not None:
            counted = f"{100 * row.marks * use_ns / row.step_ns:.2g} %"
        return [row.label, duration(row.step_ns), difference, interval, counted, row.note]

    headings = (
        "",
        "median step",
        "difference",
        "95 % interval",
        "counted",
        "more or less than ours",
    )
    yield from table(headings, map(cells, rows), 4)


def _memory(rows: Sequence[MemoryRow]) -> Iterator[str]:
    def cells(row: MemoryRow) -> list[str]:
        if row.growth_bytes is None:
            return [f"{row.label} (missing: {row.missing})", "", "", "", row.note]
        per_span = f"{row.bytes_per_span:.1f} B"
        return [
            row.label,
            f"{row.spans:,}",
            f"{row.growth_bytes / 1e6:.1f} MB",
            per_span,
            row.note,
        ]

    yield from table(("", "spans", "growth", "per span", "it keeps"), map(cells, rows), 3)
