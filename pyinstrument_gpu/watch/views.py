# SPDX-License-Identifier: Apache-2.0
"""The heading and the tables that `watch` shows, as parts of a report on the last look.

Each table fits a terminal of 80 columns; wider ones get more columns. Nothing is said by a colour
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Group
from rich.text import Text

from pyinstrument_gpu.core.aspect import live_views
from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.core.live import SERIES, LiveView
from pyinstrument_gpu.parts.choice import Choice, Sorts, as_recorded, sparkline
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, printable, time_text
from pyinstrument_gpu.report.console import rich_parts
from pyinstrument_gpu.watch.live_run import LivePhase, LiveRun, spread
from pyinstrument_gpu.watch.watch import Unreadable

_WIDE = 110
_SIGNS = {
    Condition.RUNNING: ("●", "green"),
    Condition.HANGING: ("▲", "yellow"),
    Condition.SILENT: ("▲", "yellow"),
    Condition.STOPPED: ("▲", "yellow"),
    Condition.LOST: ("?", "yellow"),
    Condition.CUT_OFF: ("■", "red"),
    Condition.UNWRITTEN: ("■", "red"),
    Condition.FAILED: ("■", "red"),
    Condition.ENDED: ("✓", "green"),
    Condition.FINISHED: ("✓", "green"),
}


def heading(run: LiveRun | Unreadable, width: int) -> Text:
    """Return four lines: which run it is, how it is, its steps, memory and the recorder; and what
    the loop waits for."""
    if isinstance(run, Unreadable):
        lines = [Text(f"■ {printable(run.file)}"), Text(printable(run.reason))]
    else:
        words = Text(printable(run.heartbeat.words))
        lines = [_title(run), words, Text(_steps_line(run)), _health_line(run, width)]
        of_aspects = (view.line(run.aspects[view.key]) for view in live_views())
        lines += [Text(line) for line in of_aspects if line]
    for line in lines:
        line.truncate(max(1, width), overflow="ellipsis")
    return Text("\n").join(lines)


def _title(run: LiveRun) -> Text:
    symbol, colour = _SIGNS[run.heartbeat.condition]
    title = Text(f"{symbol} {run.heartbeat.condition.value}", f"bold {colour}")
    title = Text.assemble(title, "  ", (printable(os.path.basename(run.file)), "bold"))
    if run.world_size is not None and run.world_size > 1:
        title.append(f"  rank {run.rank} of {run.world_size}")
    if run.host is not None:
        process = "" if run.pid is None else f", process {run.pid}"
        title.append(f"  {printable(run.host)}{process}", "dim")
    return title


def _steps_line(run: LiveRun) -> str:
    steps = run.steps
    if not steps.count:
        return "no step has ended yet" if steps.open_index is not None else "no steps so far"
    unit = Unit.fitting(max(steps.window_mean_ns or 0, steps.p99_ns or 0, 1))
    facts = [counted(steps.count, "step")]
    if steps.window_per_s is not None:
        facts.append(f"{_figure(steps.window_per_s)}/s")
    if steps.window_mean_ns is not None:
        facts.append(f"{unit.text(steps.window_mean_ns)} {unit.name} a step")
    facts.append(f"(run: p50 {unit.text(steps.p50_ns)}, p99 {unit.text(steps.p99_ns)})")
    if steps.window_samples_per_s is not None:
        facts.append(f"{_figure(steps.window_samples_per_s)} samples/s")
    if steps.last_slow is not None:
        index = steps.last_slow.step
        cause = next((one.slow for one in steps.newest if one.index == index), None)
        facts.append(f"slow: step {index:,}" + ("" if cause is None else f", {cause}"))
    return "  ".join(facts)


def _health_line(run: LiveRun, width: int) -> Text:
    recorder, line = run.recorder, Text()
    of_aspects = [view.heading(run.aspects[view.key]) for view in live_views()]
    if run.steps.series_ns:
        # In a narrow terminal the newest of them, so that the rest of the line is seen.
        newest = run.steps.series_ns[-(SERIES if width >= _WIDE else SERIES // 2) :]
        line.append(sparkline(newest), "cyan").append("  ")
    for words, _ in of_aspects:
        line.append(f"{words}  " if words else "")
    share = recorder.thread_share
    line.append("recorder " + (UNKNOWN if share is None else f"{100 * share:.1f} % of a core"))
    dropped = sum(recorder.dropped.values())
    problems = [f"{dropped:,} dropped"] if dropped else []
    if recorder.damaged_blocks:
        problems.append(counted(recorder.damaged_blocks, "damaged block"))
    problems += [problem for _, problem in of_aspects if problem]
    if problems:
        line.append("  ! " + ", ".join(problems), "yellow")
    return line


_Looks: TypeAlias = Sequence["LiveRun | Unreadable"]


@dataclass(frozen=True)
class View:
    """A table of the view.

    Attributes:
        name: of its tab.
        keys: by what it can be sorted, as functions of what its rows are about.
        parts: makes it of a run, the runs of all ranks, a choice and a width.
    """

    name: str
    keys: Sorts
    parts: Callable[[LiveRun, _Looks, Choice, int], list[Part]]

    @classmethod
    def of(cls, live: LiveView[Any, Any]) -> View:
        """The table of an aspect."""

        def parts(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
            return live.parts(run.aspects[live.key], choice)

        return cls(live.tab, live.sorts, parts)

    @property
    def sorts(self) -> tuple[str, ...]:
        return tuple(self.keys)

    def render(self, run: LiveRun, runs: _Looks, choice: Choice, width: int) -> Group:
        return Group(*rich_parts(self.parts(run, runs, choice, width), width))


_PHASE_KEYS: Sorts = {
    "tree": as_recorded,
    "time": lambda phase: (-(phase.window_per_step_ns or 0), phase.path),
    "change": lambda phase: (-(_change(phase) or 0), phase.path),
    "calls": lambda phase: (-(phase.window_calls_per_s or 0), phase.path),
    "name": lambda phase: phase.path,
}


def _phases(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    phases = [phase for phase in run.phases if phase.calls or phase.window_calls or phase.is_open]
    if not phases:
        return [Sentence("no phase has been recorded yet")]
    as_tree = choice.sort == "tree"
    shown = choice.of(phases, lambda phase: phase.path, _PHASE_KEYS)
    if as_tree:
        # Where the filter takes a phase, the ones around it stay, for it to have its place.
        taken = {phase.path for phase in shown}
        taken |= {path[:end] for path in taken for end, one in enumerate(path) if one == "/"}
        shown = [phase for phase in _tree(phases) if phase.path in taken]
    largest = max(phase.window_per_step_ns or phase.per_step_ns or 0 for phase in phases)
    outside = max(phase.window_mean_ns or phase.mean_ns or 0 for phase in phases)
    unit, call_unit = Unit.fitting(largest or outside), Unit.fitting(outside)
    columns = 9 if width >= _WIDE else 5
    rows = [_phase_row(phase, as_tree, unit, call_unit, columns) for phase in shown]
    headers = [f"  {unit.name} per step", "now", "% step", "run", "change", "calls/s"]
    headers += [f"{call_unit.name} a call", "p99", "on GPU", "calls"]
    return choice.table(headers[: 1 + columns], rows)


def _phase_row(phase: LivePhase, as_tree: bool, unit: Unit, call_unit: Unit, columns: int) -> Row:
    cells = [
        unit.text(phase.window_per_step_ns),
        _percent(phase.window_share),
        unit.text(phase.per_step_ns),
        _signed_percent(_change(phase)),
        _figure(phase.window_calls_per_s),
        *map(call_unit.text, (phase.window_mean_ns, phase.p99_ns, phase.device_mean_ns)),
        f"{phase.calls:,}",
    ]
    name = phase.path.rpartition("/")[2] if as_tree else phase.path
    name = ("▶ " if phase.is_open else "  ") + name.replace("%2F", "/").replace("%25", "%")
    depth = phase.path.count("/") if as_tree else 0
    return Row(name, cells[:columns], depth, sparkline(phase.series_ns))


def _tree(phases: Sequence[LivePhase]) -> list[LivePhase]:
    """Return each phase behind the one around it, else in order of first appearance."""
    known = {phase.path for phase in phases}
    by_parent: dict[str, list[LivePhase]] = {}
    for phase in phases:
        parent = phase.path.rpartition("/")[0]
        by_parent.setdefault(parent if parent in known else "", []).append(phase)
    ordered, waiting = [], by_parent.get("", [])[::-1]
    while waiting:
        ordered.append(waiting.pop())
        waiting += by_parent.get(ordered[-1].path, [])[::-1]
    return ordered


def _change(phase: LivePhase) -> float | None:
    if not phase.per_step_ns or phase.window_per_step_ns is None:
        return None
    return phase.window_per_step_ns / phase.per_step_ns - 1


_STEP_KEYS: Sorts = {
    "newest": lambda step: -step.index,
    "oldest": lambda step: step.index,
    "longest": lambda step: (-step.duration_ns, step.index),
}


def _steps(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    if not run.steps.newest:
        return [Sentence("no step has ended yet")]
    longest_ns = max(step.duration_ns for step in run.steps.newest)
    unit, room = Unit.fitting(longest_ns), max(8, width - 36)
    rows = []
    for step in choice.of(run.steps.newest, lambda step: step.index, _STEP_KEYS):
        bar = "█" * max(1, round(step.duration_ns / longest_ns * room))
        note = bar + ("" if step.complete else " not complete")
        note += "" if step.slow is None else f" {step.slow}"
        rows.append(Row(f"{step.index:,}", [unit.text(step.duration_ns)], note=note))
    last = run.steps.last_slow_words
    return [
        *choice.table(["step", unit.name], rows),
        *([] if last is None else [Sentence(f"Last slow one: {last}", "note")]),
    ]


_RANK_KEYS: Sorts = {
    "first": as_recorded,
    "time": lambda times_ns: -max(time or 0 for time in times_ns),
    "spread": lambda times_ns: -(spread(times_ns) or 0),
}
"""Of the times of a phase on all ranks."""


def _ranks(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    ranks = [one for one in runs if isinstance(one, LiveRun)]
    # The selected one is marked, and as many stand beside it as there is room for.
    fitting = max(1, (width - 34) // 12)
    at = next((place for place, one in enumerate(ranks) if one is run), 0)
    first = max(0, min(at - fitting // 2, len(ranks) - fitting))
    chosen = slice(first, first + fitting)
    steps_ns = [one.steps.window_mean_ns for one in ranks]
    unit = Unit.fitting(max((ns or 0 for ns in steps_ns), default=0) or 1e6)

    def timed(name: str, times_ns: Sequence[float | None]) -> Row:
        return Row(name, [_percent(spread(times_ns)), *map(unit.text, times_ns[chosen])])

    def row(name: str, text: Callable[[LiveRun], str]) -> Row:
        return Row(name, ["", *map(text, ranks[chosen])])

    facts = [
        row("is", _sign),
        row("step", lambda one: f"{one.steps.count:,}"),
        row("steps/s", lambda one: _figure(one.steps.window_per_s)),
        timed(f"{unit.name} a step", steps_ns),
    ]
    for view in live_views():
        figures = [view.figure(one.aspects[view.key]) for one in ranks[chosen]]
        facts += [Row(view.key, ["", *figures])] if any(figures) else []
    names = ["this run" if one.rank is None else f"rank {one.rank}" for one in ranks]
    columns = [">" * (place == at) + name for place, name in enumerate(names)]
    times_ns = sorted(
        _by_path(ranks, choice).items(), key=lambda of: _RANK_KEYS[choice.sort](of[1])
    )
    blocks = [facts, [timed(*one) for one in times_ns]]
    hidden = len(ranks) - len(ranks[chosen])
    return [
        table(["", "spread", *columns[chosen]], blocks),
        *([Sentence(f"{hidden} more: ← and →", "note")] if hidden else []),
        *(
            Sentence(f"{printable(one.file)}: {printable(one.reason)}", "warn")
            for one in runs
            if isinstance(one, Unreadable)
        ),
    ]


def _by_path(ranks: Sequence[LiveRun], choice: Choice) -> dict[str, list[float | None]]:
    """The time per step of each phase on each rank, as far as it is known of any."""
    found: dict[str, list[float | None]] = {}
    for place, one in enumerate(ranks):
        for phase in one.phases:
            if choice.takes(phase.path):
                times_ns = found.setdefault(phase.path, [None] * len(ranks))
                times_ns[place] = phase.window_per_step_ns
    return {path: ns for path, ns in found.items() if any(one is not None for one in ns)}


def _sign(run: LiveRun) -> str:
    condition = run.heartbeat.condition
    return f"{_SIGNS[condition][0]} {condition.value}"


def _recorder(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    recorder = run.recorder
    share = "an unknown share"
    if recorder.thread_share is not None:
        share = f"{100 * recorder.thread_share:.2f} %"
    lines = [
        f"run file: {run.file}",
        f"command: {' '.join(run.command) or 'unknown'}",
        f"recorded for {time_text(run.duration_ns)}",
        f"its thread used {share} of one core",
    ]
    lines += [f"dropped ({cause}): {count:,}" for cause, count in recorder.dropped.items()]
    lines += [] if recorder.dropped else ["nothing dropped"]
    if recorder.damaged_blocks:
        lines.append(f"{counted(recorder.damaged_blocks, 'block')} of the file can't be read")
    if recorder.error is not None:
        lines.append(f"the history ends early: {recorder.error}")
    for first, last in run.profiled:
        lines.append(f"steps {first} to {last} were profiled: `pyinstrument-gpu report` shows them")
    return [Sentence(printable(line)) for line in (*lines, *run.notes) if choice.takes(line)]


_BY_PLACE = {
    1: View("Phases", _PHASE_KEYS, _phases),
    4: View("Steps", _STEP_KEYS, _steps),
    6: View("Ranks", _RANK_KEYS, _ranks),
    7: View("Recorder", {"all": as_recorded}, _recorder),
    **{view.place: View.of(view) for view in live_views() if view.tab},
}
VIEWS = tuple(_BY_PLACE[place] for place in sorted(_BY_PLACE))


def _figure(value: float | None) -> str:
    """Return a figure of three digits."""
    if value is None:
        return UNKNOWN
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _signed_percent(share: float | None) -> str:
    percent = None if share is None else round(100 * share)
    return UNKNOWN if percent is None else f"{percent:+d} %" if percent else "0 %"
