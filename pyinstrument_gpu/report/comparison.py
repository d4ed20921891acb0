# SPDX-License-Identifier: Apache-2.0
"""A comparison of runs, as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.analysis.compare import CONFIDENCE, Comparison, PhaseChange, Verdict
from pyinstrument_gpu.analysis.final_values import FinalValue
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, counted, table

_MAX_NAMED = 3
_MIN_SHARE_NAMED = 0.05  # of what left or arrived
_MAX_ROWS = 30


def comparison_report(comparison: Comparison, width: int = 80) -> str:
    before_ns, after_ns = (_mean(side) for side in (comparison.before_ns, comparison.after_ns))
    unit = Unit.fitting(max(before_ns, after_ns))

    def row(name: str, before_ns: float, after_ns: float) -> Row:
        texts = [unit.text(before_ns), unit.text(after_ns), _signed(after_ns - before_ns, unit)]
        share = 100 * (after_ns - before_ns) / before_step_ns
        return Row(name, [*texts, f"{share:+.1f}"])

    before_step_ns = before_ns
    rows = [row(p.path, p.before_ns, p.after_ns) for p in comparison.phases[:_MAX_ROWS]]
    headers = [f"{unit.name} per step", "before", "after", "change", "% step"]
    parts: list[Text | Table] = [
        *map(Text, _verdict_lines(comparison)),
        Text(),
        table(headers, [rows, [row("step", before_ns, after_ns)]], width),
        Text(),
        Text(_moved(comparison, unit)),
    ]
    if comparison.finals:
        parts += [Text(), _finals(comparison.finals, width)]
    if any(final.differs is None for final in comparison.finals):
        parts.append(Text("A difference without an interval cannot be told from noise"))
    parts += [Text(f"! {warning}") for warning in comparison.warnings]
    return printed(parts, width)


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    facts = dataclasses.asdict(comparison)
    facts["verdict"] = comparison.verdict.value
    facts["confidence"] = CONFIDENCE
    for name in ("left_ns", "arrived_ns", "moved_ns"):
        facts[name] = getattr(comparison, name)
    for final, final_facts in zip(comparison.finals, facts["finals"], strict=True):
        final_facts["differs"] = final.differs
        for name in ("before", "after"):  # JSON has no other numbers
            values = final_facts[name]
            final_facts[name] = [value if math.isfinite(value) else None for value in values]
    return facts


def _verdict_lines(comparison: Comparison) -> list[str]:
    lines = [f"{comparison.verdict.value}: {_change(comparison)}"]
    if comparison.before_rate is not None and comparison.after_rate is not None:
        lines.append(
            f"{comparison.before_rate:,.4g} -> {comparison.after_rate:,.4g} samples/s, over "
            f"{counted(comparison.steps, 'step')} of each run"
        )
    else:
        lines.append(f"Over {counted(comparison.steps, 'step')} of each run")
    runs = (
        f"{counted(len(comparison.before_ns), 'run')} before, "
        f"{counted(len(comparison.after_ns), 'run')} after"
    )
    if comparison.smallest_effect is None:
        lines.append(
            f"{runs}: one run per side cannot separate the change from noise. Record several per "
            "side, or pass --noise"
        )
    else:
        lines.append(
            f"{runs}: they can show a change of {100 * comparison.smallest_effect:.2g} % or more; "
            f"a change of {100 * comparison.margin:.2g} % or less counts as the same"
        )
    return lines


def _change(comparison: Comparison) -> str:
    text = f"{100 * comparison.change:+.2f} % time per {comparison.unit}"
    if comparison.interval is not None:
        low, high = (100 * end for end in comparison.interval)
        text += f" ({100 * CONFIDENCE:.0f} % interval {low:+.2f} % to {high:+.2f} %)"
    return text


def _moved(comparison: Comparison, unit: Unit) -> str:
    left = [phase for phase in comparison.phases if phase.change_ns < 0]
    arrived = [phase for phase in comparison.phases if phase.change_ns > 0]
    step = 100 * (_mean(comparison.after_ns) / _mean(comparison.before_ns) - 1)
    text = (
        f"{unit.text(comparison.left_ns)} {unit.name} left {_names(left)}, "
        f"{unit.text(comparison.arrived_ns)} {unit.name} arrived in {_names(arrived)}: "
        f"step {step:+.1f} %"
    )
    if comparison.verdict in (Verdict.FASTER, Verdict.SLOWER) and comparison.moved_ns > 0:
        return f"{text}. {unit.text(comparison.moved_ns)} {unit.name} only moved"
    return text


def _names(phases: list[PhaseChange]) -> str:
    total_ns = sum(abs(phase.change_ns) for phase in phases)
    named = [p.path for p in phases if abs(p.change_ns) >= _MIN_SHARE_NAMED * total_ns]
    if not named:
        return "nothing"
    more = ", ..." if len(named) > _MAX_NAMED else ""
    return ", ".join(named[:_MAX_NAMED]) + more


def _finals(finals: Sequence[FinalValue], width: int) -> Table:
    headers = ["at the end", "before", "after", "change", "interval"]
    rows = []
    for final in finals[:_MAX_ROWS]:
        before, after = final.before_mean, final.after_mean
        interval = final.interval
        cells = [
            f"{before:.6g}",
            f"{after:.6g}",
            f"{after - before:+.3g}" if math.isfinite(after - before) else UNKNOWN,
            UNKNOWN if interval is None else " to ".join(f"{end:+.3g}" for end in interval),
        ]
        rows.append(Row(final.name, cells))
    return table(headers, [rows], width)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _signed(duration_ns: float, unit: Unit) -> str:
    return ("+" if duration_ns > 0 else "") + unit.text(duration_ns)
