# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks of a session found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.row import Fact, MemoryRow, Row, StepRow


@dataclass
class Board:
    """The results so far, by title.

    Attributes:
        seconds: how long the session took; 0 while it goes on.
    """

    machine: dict[str, Any]
    races: dict[str, list[Row]] = field(default_factory=dict)
    steps: dict[str, list[StepRow]] = field(default_factory=dict)
    memory: list[MemoryRow] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    seconds: float = 0

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print("  ".join(f"{key} {value}" for key, value in self.machine.items()), "\n")
        for title, rows in self.races.items():
            console.print(_race_table(title, rows), "")
        for title, step_rows in self.steps.items():
            console.print(_step_table(title, step_rows), "")
        if self.memory:
            console.print(_memory_table(self.memory), "")
        for fact in self.facts:
            console.print(
                f"{fact.label}: {fact.value:.1f} {fact.unit}; "
                f"goal at most {fact.goal:g}: {fact.verdict}"
            )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Board:
        """The board of which this is the data."""
        return cls(
            data["machine"],
            {title: [Row(**row) for row in rows] for title, rows in data["races"].items()},
            {title: [StepRow(**row) for row in rows] for title, rows in data["steps"].items()},
            [MemoryRow(**row) for row in data["memory"]],
            [Fact(**fact) for fact in data["facts"]],
            data["seconds"],
        )


def duration(ns: float) -> str:
    """A time with its unit, readable at a glance."""
    if abs(ns) < 1_000:
        return f"{ns:.1f} ns"
    if abs(ns) < 1_000_000:
        return f"{ns / 1e3:.1f} us"
    return f"{ns / 1e6:.1f} ms"


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", min_width=44)
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("")
    return table


def _race_table(title: str, rows: Sequence[Row]) -> Table:
    table = _table(title, ("best", "median", "ours / this", "by median", "goal"))
    for row in rows:
        if row.best_ns is None or row.median_ns is None:
            table.add_row(row.label, "", "", "", "", "", f"missing: {row.missing}")
            continue
        ratios = (row.best_ratio, row.median_ratio)
        table.add_row(
            row.label,
            duration(row.best_ns),
            duration(row.median_ns),
            *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
            "" if row.goal is None else f"<= {row.goal:.3g}",
            row.verdict,
        )
    return table


def _step_table(title: str, rows: Sequence[StepRow]) -> Table:
    table = _table(title, ("median step", "difference", "95 %"))
    for row in rows:
        if row.step_ns is None:
            table.add_row(row.label, "", "", "", f"missing: {row.missing}")
        elif row.difference is None or row.low is None or row.high is None:
            table.add_row(row.label, duration(row.step_ns), "", "", "")
        else:
            interval = f"{100 * row.low:+.2f} to {100 * row.high:+.2f} %"
            difference = f"{100 * row.difference:+.2f} %"
            table.add_row(row.label, duration(row.step_ns), difference, interval, "")
    return table


def _memory_table(rows: Sequence[MemoryRow]) -> Table:
    table = _table("Memory that grows", ("spans", "growth", "per span"))
    for row in rows:
        if row.growth_bytes is None:
            table.add_row(row.label, "", "", "", f"missing: {row.missing}")
        else:
            growth = f"{row.growth_bytes / 1e6:.1f} MB"
            table.add_row(row.label, f"{row.spans:,}", growth, f"{row.bytes_per_span:.1f} B", "")
    return table
