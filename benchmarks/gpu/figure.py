# SPDX-License-Identifier: Apache-2.0
"""One thing measured, and how it looks as a line of JSON and as a row of a table.

Parts of the GPU benchmarks print their figures, one line each; whatever else they print is for a
person to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.machine import describe_machine


@dataclass(frozen=True)
class Figure:
    """A number with its unit.

    Attributes:
        low, high: its 95 % confidence interval, where it has one.
        goal: what it should be at most, where there is a goal.
        note: what a reader must know to read it rightly.
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        if self.low is not None and self.high is not None and self.low <= self.goal < self.high:
            return "met within its interval" if self.value <= self.goal else "not met, unsure"
        return "met" if self.value <= self.goal else "not met"

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_dict(self) -> dict[str, str | float]:
        """Without what it has not."""
        values = asdict(self)
        optional = ("low", "high", "goal", "note")
        return {k: v for k, v in values.items() if k not in optional or v not in (None, "")}


def print_figures(figures: Iterable[Figure]) -> None:
    """Each as soon as it is known: a part that is stopped keeps what it has."""
    for figure in figures:
        print(figure.to_json(), flush=True)


def print_and_write(figures: Iterable[Figure], path: Path | None) -> None:
    """As `print_figures`; at the end all go to a file, if one is given, with the machine."""
    found = []
    for figure in figures:
        print_figures([figure])
        found.append(figure.to_dict())
    if path is not None:
        results = {"machine": describe_machine(), "figures": found}
        path.write_text(json.dumps(results, indent=1) + "\n")


def read_figures(output: str) -> list[Figure]:
    """The figures in what a part has printed. Other lines are passed over, a torn one too."""
    names = {field.name for field in fields(Figure)}
    figures = []
    for line in output.splitlines():
        try:
            values = json.loads(line) if line.startswith("{") else None
        except json.JSONDecodeError:
            continue
        if isinstance(values, dict) and {"name", "value", "unit"} <= set(values) <= names:
            figures.append(Figure(**values))
    return figures


def markdown_table(figures: Iterable[Figure]) -> str:
    """A table with a row for each."""
    rows = ["| | value | 95 % | goal | |", "|---|---:|---:|---:|---|"]
    for figure in figures:
        interval = (
            ""
            if figure.low is None or figure.high is None
            else f"{number(figure.low)} to {number(figure.high)}"
        )
        goal = "" if figure.goal is None else f"<= {number(figure.goal)}"
        last = ". ".join(text for text in (figure.verdict, figure.note) if text)
        rows.append(
            f"| {figure.name} | {number(figure.value)} {figure.unit} | {interval} | {goal} "
            f"| {last} |"
        )
    return "\n".join(rows)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
