# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks of a session found, as one table and as JSON."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import pyinstrument_gpu as pig
from benchmarks.race import Row


@dataclass(frozen=True)
class Fact:
    """Something measured that is no time."""

    label: str
    value: float
    unit: str
    goal: float

    @property
    def verdict(self) -> str:
        return "met" if self.value <= self.goal else "not met"


@dataclass(frozen=True)
class Board:
    """The results so far, by title."""

    machine: dict[str, Any]
    races: dict[str, list[Row]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print("  ".join(f"{key} {value}" for key, value in self.machine.items()), "\n")
        for title, rows in self.races.items():
            console.print(_table(title, rows), "")
        for fact in self.facts:
            console.print(
                f"{fact.label}: {fact.value:.1f} {fact.unit}; "
                f"goal at most {fact.goal:g}: {fact.verdict}"
            )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "machine": self.machine,
            "races": {
                title: [{**asdict(row), "verdict": row.verdict} for row in rows]
                for title, rows in self.races.items()
            },
            "facts": [{**asdict(fact), "verdict": fact.verdict} for fact in self.facts],
        }


def describe_machine() -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    with pig.record() as recording:
        pass
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "clock": recording.run.environment["clock"]["kind"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _version_of("torch"),
        "pyarrow": _version_of("pyarrow"),
        "pyinstrument_gpu": pig.__version__,
    }


def _commit() -> str | None:
    """The commit measured; "+" for changes on top; None where git or its data is missing."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", min_width=44)
    for heading in ("best", "median", "ours / this", "by median", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        ratios = (row.best_ratio, row.median_ratio)
        table.add_row(
            row.label,
            _duration(row.best_ns),
            _duration(row.median_ns),
            *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
            "" if row.goal is None else f"<= {row.goal:g}",
            row.verdict,
        )
    return table


def _duration(ns: float) -> str:
    if abs(ns) < 10_000:
        return f"{ns:.1f} ns"
    return f"{ns / 1e6:.1f} ms"
