# SPDX-License-Identifier: Apache-2.0
"""A comparison of runs, as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pyinstrument_gpu.analysis.compare import MIN_RUNS, Comparison, PhaseChange, TimeChange
from pyinstrument_gpu.analysis.differences import COMMAND_LINE, Difference, Differences
from pyinstrument_gpu.analysis.memory_change import MemoryChange
from pyinstrument_gpu.analysis.run_sample import OUTSIDE_PHASES, FinalValue
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, Table, table
from pyinstrument_gpu.parts.words import (
    UNKNOWN,
    Unit,
    capitalised,
    confidence_percent,
    counted,
    printable,
    rounded_percent,
    size,
)
from pyinstrument_gpu.report.console import printed

_MAX_NAMED = 3
_MIN_SHARE_NAMED = 0.05  # of what left or arrived
_MAX_ROWS = 30
_MOST_DIFFERENCES = 8
_MIN_CAUSE_SHARE = 0.01


def comparison_report(comparison: Comparison, width: int = 80) -> str:
    """The comparison as text: what else differs comes first, as it may be why."""
    blocks = [difference_parts(comparison.differences), comparison_parts(comparison)]
    if not comparison.differences.found:
        blocks.reverse()
    return printed([*blocks[0], Sentence(), *blocks[1]], width)


def difference_parts(differences: Differences) -> list[Part]:
    """Return what else differs between the sides."""
    texts = [f"{one.what}: {values_text(one)}" for one in differences.found]
    title = "What else differs" if texts else "Nothing else that the runs record differs"
    parts: list[Part] = [Sentence(title, "title")]
    parts += [Sentence(printable(capitalised(text))) for text in texts[:_MOST_DIFFERENCES]]
    if len(texts) > _MOST_DIFFERENCES:
        parts.append(Sentence(f"... and {len(texts) - _MOST_DIFFERENCES:,} more (--json)", "note"))
    if differences.unknown:
        unknown = ", ".join(differences.unknown)
        parts.append(Sentence(f"Not known for all runs: {unknown}", "note"))
    return parts


def values_text(difference: Difference) -> str:
    """Return the values of the runs of both sides, as "2.12 and 2.13"."""
    sides = difference.before, difference.after
    return " and ".join("; ".join(values[:_MAX_NAMED]) for values in sides)


def comparison_parts(comparison: Comparison) -> list[Part]:
    """The parts of the comparison: the verdict with its warnings, the phases, what moved, and
    metrics."""
    elapsed, inside = comparison.elapsed, comparison.inside
    unit = Unit.fitting(max(elapsed.before_mean_ns, elapsed.after_mean_ns))

    def row(name: str, before_ns: float, after_ns: float) -> Row:
        texts = [unit.text(before_ns), unit.text(after_ns), signed(after_ns - before_ns, unit)]
        share = 100 * (after_ns - before_ns) / elapsed.before_mean_ns
        return Row(name, [*texts, f"{share:+.1f}"])

    def phases(is_outside: bool) -> list[Row]:
        chosen = [phase for phase in comparison.phases if phase.is_outside is is_outside]
        return [row(phase.path, phase.before_ns, phase.after_ns) for phase in chosen[:_MAX_ROWS]]

    def whole(name: str, of: TimeChange) -> list[Row]:
        return [row(name, of.before_mean_ns, of.after_mean_ns)]

    headers = [f"{unit.name} per step", "before", "after", "change", "% elapsed"]
    parts: list[Part] = [
        *map(Sentence, _verdict_lines(comparison)),
        *(Sentence(f"! {warning}") for warning in comparison.warnings),
        Sentence(),
        table(headers, [phases(is_outside=False), whole("step", inside)]),
        Sentence(),
        Sentence("Outside steps, divided by the number of steps"),
        table(headers, [phases(is_outside=True), whole("elapsed", elapsed)]),
        Sentence(),
        Sentence(_moved(comparison, unit)),
        *_causes(comparison, unit),
        *_memory(comparison.memory),
    ]
    if comparison.finals:
        parts += [Sentence(), _finals(comparison.finals)]
    if any(final.differs is None for final in comparison.finals):
        parts.append(Sentence("A difference without an interval cannot be told from noise"))
    return parts


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    facts = dataclasses.asdict(comparison)
    facts["verdict"] = comparison.verdict.value
    for name in ("elapsed", "inside", "without_uneven"):
        if facts[name] is not None:
            facts[name]["verdict"] = facts[name]["verdict"].value
    facts["is_moved_out"] = comparison.is_moved_out
    facts["costs"] = comparison.costs
    for phase, phase_facts in zip(comparison.phases, facts["phases"], strict=True):
        phase_facts["is_significant"] = phase.is_significant
    if comparison.memory is not None:
        facts["memory"]["is_significant"] = comparison.memory.is_significant
    for cause, cause_facts in zip(comparison.causes, facts["causes"], strict=True):
        cause_facts["is_significant"] = cause.is_significant
    for name in ("left_ns", "arrived_ns", "moved_ns"):
        facts[name] = getattr(comparison, name)
    for final, final_facts in zip(comparison.finals, facts["finals"], strict=True):
        final_facts["differs"] = final.differs
        for name in ("before", "after"):  # JSON has no other numbers
            values = final_facts[name]
            final_facts[name] = [value if math.isfinite(value) else None for value in values]
    return facts


def _of_another(differences: Differences) -> str:
    """Return what makes the sides two things rather than one that changed: their machine or
    program."""
    text = ""
    for one in differences.found:
        before, after, words = one.before, one.after, "on another machine"
        if one.what == COMMAND_LINE:
            before, after = map(_programs, (before, after))
            words = "of another program"
        elif one.what != "host":
            continue
        if set(before).isdisjoint(after):
            text += f", {words} ({', '.join(before)}, then {', '.join(after)})"
    return printable(text)


def _programs(commands: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({os.path.basename(command.split(" ")[0]) for command in commands}))


def _verdict_lines(comparison: Comparison) -> list[str]:
    elapsed, confidence = comparison.elapsed, comparison.confidence
    what = f"elapsed time per {comparison.unit}"
    before_runs, after_runs = len(elapsed.before_ns), len(elapsed.after_ns)
    runs = f"{counted(before_runs, 'run')} before, {counted(after_runs, 'run')} after"
    is_too_few = elapsed.interval is None and not comparison.is_noise_known
    from_what = "one run per side" if before_runs == after_runs == 1 else runs
    reason = f"can't tell from {from_what}: " if is_too_few else ""
    verdict = f"{comparison.verdict.value}{_of_another(comparison.differences)}"
    lines = [f"{verdict}: {reason}{_change(elapsed, what, confidence)}"]
    inside = _change(comparison.inside, f"per {comparison.unit}", confidence)
    if comparison.is_moved_out:
        lines.append(
            f"Moved, not saved: inside steps {inside}, but what left them is now outside steps"
        )
    else:
        lines.append(f"Inside steps: {inside}")
    if comparison.without_uneven is not None:
        without = _change(comparison.without_uneven, what, confidence)
        calls = (
            f"{phase.path} {1000 * phase.before_calls:,.4g} and {1000 * phase.after_calls:,.4g}"
            for phase in comparison.uneven
        )
        lines.append(
            "The loops differ outside steps, in calls per 1,000 steps before and after: "
            f"{', '.join(calls)}"
        )
        lines.append(f"Without these: {comparison.without_uneven.verdict.value}, {without}")
    over = f"ver {counted(comparison.steps, 'step')} of each run"
    rates = rates_text(comparison)
    lines.append(f"{rates}, o{over}" if rates else f"O{over}")
    if comparison.costs is not None:
        lines.append(cost_text(comparison, comparison.costs))
    if elapsed.smallest_effect is None and not is_too_few:
        lines.append(f"{runs}: no verdict, for the reason that follows")
    elif elapsed.smallest_effect is None:
        lines.append(
            f"{runs}: they cannot separate the change from noise and drift. Record at least "
            f"{MIN_RUNS // 2} per side, in turn"
        )
    else:
        lines.append(
            f"{runs}: they can show a change of "
            f"{rounded_percent(elapsed.smallest_effect)} or more; a change of "
            f"{100 * comparison.margin:.2g} % or less counts as the same"
        )
    return lines


def rates_text(comparison: Comparison) -> str:
    """Tokens and samples per second, before and after; empty where they are not known."""
    tokens = "tokens/s without padding" if comparison.is_without_padding else "tokens/s"
    rates = (
        (comparison.before_tokens_rate, comparison.after_tokens_rate, tokens),
        (comparison.before_rate, comparison.after_rate, "samples/s"),
    )
    return ", ".join(
        f"{_amount(before)} -> {_amount(after)} {unit}"
        for before, after, unit in rates
        if before is not None and after is not None
    )


def cost_text(comparison: Comparison, costs: tuple[float, float]) -> str:
    before, after = map(_amount, costs)
    return f"Cost: {before} -> {after} per million {comparison.unit}s"


def _amount(number: float) -> str:
    """Return four digits, or all before the point."""
    return f"{number:,.0f}" if number >= 999.95 else f"{number:.4g}"


def _change(change: TimeChange, what: str, confidence: float) -> str:
    text = f"{100 * change.change:+.2f} % {what}"
    if change.interval is not None:
        low, high = (100 * end for end in change.interval)
        text += f" ({confidence_percent(confidence)} interval {low:+.2f} % to {high:+.2f} %)"
    return text


def _moved(comparison: Comparison, unit: Unit) -> str:
    """Return where time left and where it arrived, as far as that is more than noise."""
    significant = comparison.significant_phases
    left = [phase for phase in significant if phase.change_ns < 0]
    arrived = [phase for phase in significant if phase.change_ns > 0]
    if not significant:
        return unmoved(comparison)
    elapsed = comparison.elapsed
    share = 100 * (elapsed.after_mean_ns / elapsed.before_mean_ns - 1)
    sides = []
    if left:
        sides.append(f"{unit.text(comparison.left_ns)} {unit.name} left {_names(left)}")
    if arrived:
        sides.append(f"{unit.text(comparison.arrived_ns)} {unit.name} arrived in {_names(arrived)}")
    text = f"{', '.join(sides)}: elapsed time per step {share:+.1f} %"
    if comparison.moved_ns > 0:
        return f"{text}. {unit.text(comparison.moved_ns)} {unit.name} only moved"
    return text


def _causes(comparison: Comparison, unit: Unit) -> Iterator[Sentence]:
    """Yield what slow steps cost, by cause, where that differs by so much that it matters."""
    least_ns = _MIN_CAUSE_SHARE * comparison.elapsed.before_mean_ns
    named = [one for one in comparison.causes if abs(one.change_ns) >= least_ns][:_MAX_NAMED]
    before_ns, after_ns = comparison.before_slow_ns, comparison.after_slow_ns
    if min(before_ns, after_ns) == 0 and max(before_ns, after_ns) >= least_ns:
        none, others = ("before", "After") if before_ns == 0 else ("after", "Before")
        causes = ", ".join(f"{one.cause} {unit.text(abs(one.change_ns))}" for one in named)
        yield Sentence(
            f"No step was slow {none}. {others}, slow steps took "
            f"{unit.text(max(before_ns, after_ns))} {unit.name} more per step"
            + (f", of which {causes}" if causes else "")
        )
        return
    for one in named:
        doubt = "" if one.is_significant else " (which may be chance)"
        yield Sentence(
            f"In slow steps, {one.cause} took {unit.text(one.before_ns)} {unit.name} per step "
            f"before and {unit.text(one.after_ns)} {unit.name} after{doubt}"
        )


def _memory(memory: MemoryChange | None) -> Iterator[Sentence]:
    """Yield the change of the peaks; nothing where they do not differ for certain."""
    if memory is None or not memory.differs:
        return
    before_bytes = statistics.median(memory.before_bytes)
    after_bytes = statistics.median(memory.after_bytes)
    where = "of the process" if memory.is_of_process else "on the GPU"
    doubt = "" if memory.is_significant else " (which may be chance)"
    yield Sentence(f"Peak of memory {where}: {size(before_bytes)} -> {size(after_bytes)}{doubt}")


def unmoved(comparison: Comparison) -> str:
    """Return what there is to say of phases where none changed for certain."""
    if comparison.is_noise_known:
        return "No phase changed by more than the noise between runs"
    return "So few runs can't tell which phases changed: their noise is unknown"


def _names(phases: list[PhaseChange]) -> str:
    total_ns = sum(abs(phase.change_ns) for phase in phases)
    named = [_name(p) for p in phases if abs(p.change_ns) >= _MIN_SHARE_NAMED * total_ns]
    if not named:
        return "nothing"
    more = ", ..." if len(named) > _MAX_NAMED else ""
    return ", ".join(named[:_MAX_NAMED]) + more


def _name(phase: PhaseChange) -> str:
    if phase.path == OUTSIDE_PHASES:
        return "time outside phases" + (" and steps" if phase.is_outside else "")
    return f"{phase.path} outside steps" if phase.is_outside else phase.path


def _finals(finals: Sequence[FinalValue]) -> Table:
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
    return table(headers, [rows])


def signed(duration_ns: float, unit: Unit) -> str:
    return ("+" if duration_ns > 0 else "") + unit.text(duration_ns)
