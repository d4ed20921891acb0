# SPDX-License-Identifier: Apache-2.0
"""Writes what was measured into README.md beside this file, between its marks.

    python -m examples.cases.page

For each device the newest of the results counts. A test compares the page with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from examples.cases.case import CASES

_ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md")
RESULTS = _ROOT / "benchmarks" / "results"
_MARKED = re.compile(r"(<!-- begin results -->\n).*?(<!-- end results -->)", re.DOTALL)
_HEAD = (
    "| edit | said to save | predicted, % | saved, % | 95 % interval | verdict | as predicted |\n"
    "|---|---|---:|---:|---:|---|---|"
)
_NO_GPU = (
    "There are no figures from a GPU yet. The scripts use one if there is one, and the same\n"
    "commands then give a second table.\n"
)
_UNKNOWN = "unknown"


def filled(page: str, results: list[dict[str, Any]]) -> str:
    """The page with its marked part as the results have it."""
    tables = [table(one) for one in results] or ["Nothing has been measured yet.\n"]
    if all(one["device"] == "CPU" for one in results):
        tables.append(_NO_GPU)
    text = "\n".join(tables)
    return _MARKED.sub(lambda mark: f"{mark[1]}{text}{mark[2]}", page)


def newest_results() -> list[dict[str, Any]]:
    """Of each device those whose file was named last; the names begin with the date."""
    files = sorted(RESULTS.glob("*-cases.json"))
    found = [json.loads(file.read_text()) | {"file": file.name} for file in files]
    return list({results["device"]: results for results in found}.values())


def table(results: dict[str, Any]) -> str:
    """The results of one device."""
    machine = results["machine"]
    cores = f", {machine['cores']} cores" if results["device"] == "CPU" else ""
    link = (
        f" ([all figures](../../benchmarks/results/{results['file']}))" if "file" in results else ""
    )
    lines = [
        f"**{results['device']}** ({machine['cpu']}{cores}, load {machine['load']}, "
        f"torch {machine['torch']}, {machine['date']}), {results['pairs']} pairs of runs per case"
        f"{link}:",
        "",
        _HEAD,
        *(_row(found) for found in results["cases"]),
        "",
        *_notes(results["cases"]),
        *(f"* `{name}` could not be measured: {why}" for name, why in results["failed"].items()),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(found: dict[str, Any]) -> str:
    case = next(case for case in CASES if case.name == found["name"])
    predicted = _median(found["predictions"])
    elapsed = found["comparison"]["elapsed"]
    saved, interval = -100 * elapsed["change"], _saved_interval(elapsed)
    cells = [
        f"[{case.edit}]({case.name}/after.py)",
        case.claimed,
        _predicted(predicted),
        _signed(saved),
        _UNKNOWN if interval is None else _range(interval),
        elapsed["verdict"],
        _is_as_predicted(predicted, elapsed),
    ]
    return f"| {' | '.join(cells)} |"


def _notes(cases: list[dict[str, Any]]) -> Iterator[str]:
    for found in cases:
        losses = found["final_losses"]
        same = sum(one == other for one, other in zip(*losses.values(), strict=True))
        reasons = dict.fromkeys(one["because"] for one in found["predictions"])
        line = (
            f"* `{found['name']}`: predicted from {'; or '.join(reasons)}. The last loss was the "
            f"same in {same} of {len(losses['before'])} pairs."
        )
        without = found["comparison"]["without_uneven"]
        if without is not None:
            names = ", ".join(f"`{one['path']}`" for one in found["comparison"]["uneven"])
            interval = _saved_interval(without)
            saved = f"{_signed(-100 * without['change'])} %"
            if interval is not None:
                saved += f" ({_range(interval)})"
            line += f" Without {names}, of which one side has more: {saved}, {without['verdict']}."
        yield line
        yield from (f"  Warning: {warning}." for warning in found["warnings"])


def _median(predictions: list[dict[str, Any]]) -> tuple[float, float | None, float | None]:
    """Low, likely and high in percent of the elapsed time; each the median of those of the runs."""

    def middle(name: str) -> float | None:
        if any(one[name] is None for one in predictions):
            return None
        return 100 * float(median(one[name] / one["elapsed_ns"] for one in predictions))

    low = middle("low_ns")
    assert low is not None
    return low, middle("likely_ns"), middle("high_ns")


def _predicted(predicted: tuple[float, float | None, float | None]) -> str:
    low, likely, high = predicted
    if high is None:
        return _UNKNOWN
    if low == high:
        return f"{high:.1f}"
    text = f"{low:.1f} to {high:.1f}"
    return text if likely is None else f"{text}, likely {likely:.1f}"


def _is_as_predicted(
    predicted: tuple[float, float | None, float | None], change: dict[str, Any]
) -> str:
    """Yes, if the saving lies in the range, or the range in the saving's interval. If they only
    overlap, or the change is ambiguous, there is room for many other ranges."""
    low, _, high = predicted
    saved = -100 * change["change"]
    interval = _saved_interval(change)
    if high is None:
        return "nothing was predicted"
    if interval is None:
        return _UNKNOWN
    if interval[0] > high or low > interval[1]:
        return "**no**"
    holds = low <= saved <= high or interval[0] <= low <= high <= interval[1]
    return "yes" if holds and change["verdict"] != "AMBIGUOUS" else "not contradicted"


def _saved_interval(change: dict[str, Any]) -> tuple[float, float] | None:
    """In percent of the elapsed time."""
    interval = change["interval"]
    return None if interval is None else (-100 * interval[1], -100 * interval[0])


def _range(interval: tuple[float, float]) -> str:
    return " to ".join(map(_signed, interval))


def _signed(percent: float) -> str:
    return f"{round(percent, 1) + 0.0:+.1f}"  # never -0.0


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), newest_results()))


if __name__ == "__main__":
    main()
