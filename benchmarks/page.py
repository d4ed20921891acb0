# SPDX-License-Identifier: Apache-2.0
"""pytest-benchmark's JSON as a page: the machine, and a table for each benchmark.

`python -m benchmarks.page RESULTS.json > RESULTS.md`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.figure import Figure, markdown_table, number
from benchmarks.row import Row

_RACE_HEAD = (
    "| | best, ns | median, ns | ours / this, best | by median | goal | more or less than ours |\n"
    "|---|---:|---:|---:|---:|---|---|"
)


def markdown(results: dict[str, Any]) -> str:
    """The page of results as `--benchmark-json` writes them."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: dict[str, Any]) -> Iterator[str]:
    machine = results["machine_info"]
    yield f"# {machine['cpu']}, {machine['date']}"
    yield ""
    for key, value in machine.items():
        yield f"* {key}: {'not installed' if value is None else value}"
    yield ""
    yield "[benchmarks/README.md](../README.md) explains how it is measured."
    for benchmark in results["benchmarks"]:
        found = benchmark["extra_info"]
        yield ""
        yield f"## {found['title']}"
        yield ""
        if "rows" in found:
            yield _RACE_HEAD
            yield from (_row(Row(**row)) for row in found["rows"])
        if found.get("figures"):
            yield from ([""] if "rows" in found else [])
            yield markdown_table(Figure(**figure) for figure in found["figures"])
        missing = found.get("missing")
        if missing:
            yield ""
            yield from (f"* Missing: {name}: {reason}" for name, reason in missing.items())


def _row(row: Row) -> str:
    ratios = (row.best_ratio, row.median_ratio)
    cells = [
        row.label,
        number(row.best_ns),
        number(row.median_ns),
        *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
        "" if row.goal is None else f"<= {row.goal:.3g}: {row.verdict or 'not measured'}",
        row.note,
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(markdown(json.loads(Path(sys.argv[1]).read_text())))
