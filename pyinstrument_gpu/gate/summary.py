# SPDX-License-Identifier: Apache-2.0
"""The result of a gate, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyinstrument_gpu.analysis.compare import Slowdown, TimeChange
from pyinstrument_gpu.gate.gate import SIDES, GateResult
from pyinstrument_gpu.parts.words import (
    Unit,
    confidence_percent,
    counted,
    printable,
    rounded_percent,
)
from pyinstrument_gpu.report.comparison import comparison_facts, cost_text, rates_text, signed

_MAX_PHASES = 5


def verdict_line(result: GateResult) -> str:
    """The result in one line: what, by how much, and how sure that is."""
    elapsed, unit = result.comparison.elapsed, result.comparison.unit
    change = f"{100 * elapsed.change:+.2f} % {result.time} time per {unit}"
    line = f"{result.slowdown.value}: {change}"
    confidence = f"{confidence_percent(result.comparison.confidence)} interval"
    return f"{line} ({confidence} {interval_text(elapsed)})"


def meaning(result: GateResult) -> str:
    """A sentence on what the result says, and what it does not."""
    plan = result.plan
    limit = f"{plan.limit_percent:.3g} %"
    accepted = f"{max(plan.limit_percent, plan.margin_percent):.3g} %"
    if result.slowdown is Slowdown.SLOWER:
        by = "slower" if plan.limit_percent == 0 else f"slower by more than {limit}"
        return f"The candidate is {by}."
    if result.slowdown is Slowdown.NOT_SLOWER:
        return f"The candidate is not slower by more than {accepted}."
    effect = result.comparison.elapsed.smallest_effect
    needed = ""
    if effect is not None:
        # Beyond the limit, as it would be beyond nothing.
        slowdown = rounded_percent(effect + plan.limit_percent / 100)
        needed = f" They can show a slowdown of {slowdown} or more."
    return (
        f"The runs show neither that the candidate is slower nor that it is slower by no more "
        f"than {accepted}.{needed}"
    )


def markdown(result: GateResult) -> str:
    """Return the result as Markdown for a terminal, a comment on a change, or a CI summary."""
    return "\n".join(_lines(result))


def _lines(result: GateResult) -> Iterator[str]:
    comparison = result.comparison
    elapsed = comparison.elapsed
    yield f"### {verdict_line(result)}"
    yield ""
    yield meaning(result)
    yield ""
    unit = Unit.fitting(max(elapsed.before_mean_ns, elapsed.after_mean_ns))
    confidence = f"{confidence_percent(comparison.confidence)} interval"
    yield f"| {unit.name} per step | {SIDES[0]} | {SIDES[1]} | change | {confidence} |"
    yield "|---|---:|---:|---:|---|"
    for name, change in (("elapsed", elapsed), ("inside steps", comparison.inside)):
        yield _row(name, unit, change, interval_text(change))
    if comparison.without_uneven is not None:
        left_out = ", ".join(phase.path for phase in comparison.uneven)
        change = comparison.without_uneven
        yield _row(f"without {left_out}", unit, change, interval_text(change))
    phases = comparison.significant_phases[:_MAX_PHASES]
    for phase in phases:
        low, high = phase.interval_ns or (0.0, 0.0)
        place = f"{phase.path} outside steps" if phase.is_outside else phase.path
        share = 100 * phase.change_ns / elapsed.before_mean_ns
        yield (
            f"| {_cell(place)} | {unit.text(phase.before_ns)} | {unit.text(phase.after_ns)} "
            f"| {share:+.2f} % of elapsed | {signed(low, unit)} to {signed(high, unit)} |"
        )
    yield ""
    if rates := rates_text(comparison):
        yield f"{rates}\n"
    if comparison.costs is not None:
        yield f"{cost_text(comparison, comparison.costs)}\n"
    plan, runs = result.plan, len(elapsed.before_ns)
    yield (
        f"{counted(runs, 'run')} of each side in turn, of at most {plan.most_runs}, and "
        f"{counted(comparison.steps, 'step')} of each. Look {result.looks_taken} of "
        f"{len(plan.looks)}: the intervals of all looks hold together in "
        f"{confidence_percent(plan.confidence)} of the cases"
    )
    yield ""
    for name, text in zip(SIDES, result.sides, strict=True):
        yield f"* {name}: {_code(text)}"
    for warning in result.warnings:
        yield f"* **Warning:** {_cell(warning)}"


def facts(result: GateResult) -> dict[str, Any]:
    """Return the whole result for JSON."""
    plan = result.plan
    return {
        "result": result.slowdown.value,
        "meaning": meaning(result),
        "limit_percent": plan.limit_percent,
        "sides": dict(zip(SIDES, result.sides, strict=True)),
        "order": [SIDES[side] for side in result.order],
        "looks": [
            {"runs": look.runs, "confidence": look.confidence, "taken": i < result.looks_taken}
            for i, look in enumerate(plan.looks)
        ],
        "warnings": list(result.warnings),
        "comparison": comparison_facts(result.comparison),
    }


def _row(name: str, unit: Unit, change: TimeChange, interval: str) -> str:
    return (
        f"| {_cell(name)} | {unit.text(change.before_mean_ns)} | {unit.text(change.after_mean_ns)} "
        f"| {100 * change.change:+.2f} % | {interval} |"
    )


def interval_text(change: TimeChange) -> str:
    if change.interval is None:
        return "unknown"
    low, high = (100 * end for end in change.interval)
    return f"{low:+.2f} % to {high:+.2f} %"


def _cell(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """Quote code in more backticks than the text has in a row, as Markdown wants it."""
    text = printable(text)
    ticks = "`"
    while ticks in text:
        ticks += "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"
