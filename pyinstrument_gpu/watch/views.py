# SPDX-License-Identifier: Apache-2.0
"""What `watch` shows: the heading, and the tables as parts of a report, of what was seen at the
last look.

Each table fits a terminal of 80 columns; wider ones get more columns. Nothing is said by a colour
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from rich.console import Group
from rich.text import Text

from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, printable, size
from pyinstrument_gpu.report.console import rich_parts
from pyinstrument_gpu.watch.live_run import SERIES, LiveModule, LivePhase, LiveRun, spread
from pyinstrument_gpu.watch.sign_of_life import time_text
from pyinstrument_gpu.watch.watch import Unreadable

# Without the full block, which would touch that of the row above.
_BLOCKS = "▁▂▃▄▅▆▇"
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


def sparkline(values: Sequence[float | None], from_zero: bool = True) -> str:
    """Values as a row of blocks; a space for what is not known. From zero to the largest, or from
    the smallest to the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low = 0.0 if from_zero else min(known)
    scale = (len(_BLOCKS) - 1) / (max(known) - low) if max(known) > low else 0.0
    return "".join(
        " " if value is None else _BLOCKS[max(0, round((value - low) * scale))] for value in values
    )


def heading(run: LiveRun | Unreadable, width: int) -> Text:
    """Four lines: which run it is, how it is, its steps, memory and the recorder."""
    if isinstance(run, Unreadable):
        lines = [Text(f"■ {printable(run.file)}"), Text(printable(run.reason))]
    else:
        words = Text(printable(run.sign_of_life.words))
        lines = [_title(run), words, Text(_steps_line(run)), _health_line(run, width)]
    for line in lines:
        line.truncate(max(1, width), overflow="ellipsis")
    return Text("\n").join(lines)


def _title(run: LiveRun) -> Text:
    symbol, colour = _SIGNS[run.sign_of_life.condition]
    title = Text(f"{symbol} {run.sign_of_life.condition.value}", f"bold {colour}")
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
    return "  ".join(facts)


def _health_line(run: LiveRun, width: int) -> Text:
    memory, recorder = run.memory, run.recorder
    line = Text()
    if run.steps.series_ns:
        # In a narrow terminal the newest of them, so that the rest of the line is seen.
        newest = run.steps.series_ns[-(SERIES if width >= _WIDE else SERIES // 2) :]
        line.append(sparkline(newest), "cyan").append("  ")
    if memory is not None and memory.allocated_bytes is not None:
        where = "process" if memory.device is None else f"cuda:{memory.device}"
        peak = "" if memory.peak_bytes is None else f", peak {size(memory.peak_bytes)}"
        line.append(f"{where} {size(memory.allocated_bytes)}{peak}  ")
    share = recorder.thread_share
    line.append("recorder " + (UNKNOWN if share is None else f"{100 * share:.1f} % of a core"))
    dropped = sum(recorder.dropped.values())
    problems = [f"{dropped:,} dropped"] if dropped else []
    if recorder.damaged_blocks:
        problems.append(counted(recorder.damaged_blocks, "damaged block"))
    if memory is not None and memory.out_of_memory:
        problems.append(f"out of memory {counted(memory.out_of_memory, 'time')}")
    if problems:
        line.append("  ! " + ", ".join(problems), "yellow")
    return line


@dataclass(frozen=True)
class Choice:
    """Which rows of a view are shown, and in which order.

    Attributes:
        sort: a key of the view's `sorts`.
        filter: only rows whose name has this in it, in letters of any case.
    """

    sort: str
    filter: str = ""

    def takes(self, name: str) -> bool:
        return self.filter.casefold() in name.casefold()


_Item = TypeVar("_Item")
_Looks: TypeAlias = Sequence["LiveRun | Unreadable"]
_Keys: TypeAlias = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class View:
    """One of the tables.

    Attributes:
        name: of its tab.
        keys: by what it can be sorted, as functions of what its rows are about.
        parts: makes it of a run, the runs of all ranks, a choice and a width.
    """

    name: str
    keys: _Keys
    parts: Callable[[LiveRun, _Looks, Choice, int], list[Part]]

    @property
    def sorts(self) -> tuple[str, ...]:
        return tuple(self.keys)

    def render(self, run: LiveRun, runs: _Looks, choice: Choice, width: int) -> Group:
        return Group(*rich_parts(self.parts(run, runs, choice, width), width))


def _chosen(items: Sequence[_Item], name: str, keys: _Keys, choice: Choice) -> list[_Item]:
    """Those of the items that are shown, in order; `name` is the attribute that is filtered."""
    in_order = sorted(items, key=keys[choice.sort])
    return [one for one in in_order if choice.takes(str(getattr(one, name)))]


def _table(
    choice: Choice, headers: Sequence[str], rows: Sequence[Row], **options: Any
) -> list[Part]:
    return [table(headers, [rows], **options) if rows else _nothing(choice)]


def _nothing(choice: Choice) -> Sentence:
    return Sentence(f"nothing has {choice.filter!r} in its name")


def _as_recorded(item: Any) -> int:
    """A key that leaves the order as it is."""
    return 0


_PHASE_KEYS: _Keys = {
    "tree": _as_recorded,
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
    shown = _chosen(phases, "path", _PHASE_KEYS, choice)
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
    return _table(choice, headers[: 1 + columns], rows)


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
    """Each phase behind the one around it, else in order of first appearance."""
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


_WAIT_KEYS: _Keys = {
    "time": lambda wait: (-(wait.blocked_ns or 0), wait.line),
    "now": lambda wait: (-(wait.window_per_step_ns or 0), wait.line),
    "count": lambda wait: (-wait.count, wait.line),
    "line": lambda wait: wait.line,
}


def _waits(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    if run.waits is None:
        how = "`pyinstrument-gpu run` or pig.watch_syncs()"
        return [Sentence(f"nobody watches for waits here: {how}")]
    if not run.waits:
        return [Sentence("no line has made the host wait for the GPU so far")]
    unit = Unit.fitting(max(wait.window_per_step_ns or 0 for wait in run.waits) or 1e6)
    rows = []
    for wait in _chosen(run.waits, "line", _WAIT_KEYS, choice):
        total_s = UNKNOWN if wait.blocked_ns is None else f"{wait.blocked_ns / 1e9:,.2f}"
        counts = f"{wait.count:,}", f"+{wait.window_count:,}"
        kind = wait.kind + (" (allowed)" if wait.is_allowed else "")
        course = [sparkline(wait.series_ns[-12:])] if wait.series_ns else []
        cells = [unit.text(wait.window_per_step_ns), total_s, *counts]
        rows.append(Row(wait.line, cells, note="  ".join([*course, kind])))
    headers = ["line", f"{unit.name}/step", "total s", "waits", "window"]
    return _table(choice, headers, rows, whole_names=True)


_METRIC_KEYS: _Keys = {"first": _as_recorded, "name": lambda metric: metric.name}


def _metrics(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    if not run.metrics:
        return [Sentence("no metric has been read so far: see MetricAccumulator")]
    rows = []
    for metric in _chosen(run.metrics, "name", _METRIC_KEYS, choice):
        step = UNKNOWN if metric.step is None else f"{metric.step:,}"
        cells = [metric.text, step, time_text(metric.age_ns)]
        rows.append(Row(metric.name, cells, note=sparkline(metric.series, from_zero=False)))
    return _table(choice, ["metric", "value", "step", "age"], rows)


_STEP_KEYS: _Keys = {
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
    for step in _chosen(run.steps.newest, "index", _STEP_KEYS, choice):
        bar = "█" * max(1, round(step.duration_ns / longest_ns * room))
        note = bar + ("" if step.complete else " not complete")
        rows.append(Row(f"{step.index:,}", [unit.text(step.duration_ns)], note=note))
    return _table(choice, ["step", unit.name], rows)


def _module_ns(one: LiveModule) -> float:
    return (one.window_forward_per_step_ns or 0) + (one.window_backward_per_step_ns or 0)


_MODULE_KEYS: _Keys = {
    "time": lambda one: -_module_ns(one),
    "first": _as_recorded,
    "name": lambda one: one.name,
}


def _modules(run: LiveRun, runs: _Looks, choice: Choice, width: int) -> list[Part]:
    if not run.modules:
        return [Sentence("modules are not watched: `pyinstrument-gpu run --modules`")]
    unit = Unit.fitting(max(map(_module_ns, run.modules)) or 1e6)
    longest_ns = max(one.forward_mean_ns or one.backward_mean_ns or 0 for one in run.modules)
    call_unit = Unit.fitting(longest_ns)
    rows = []
    for one in _chosen(run.modules, "name", _MODULE_KEYS, choice):
        now_ns = one.window_forward_per_step_ns, one.window_backward_per_step_ns
        means_ns = one.forward_mean_ns, one.backward_mean_ns
        cells = [*map(unit.text, now_ns), *map(call_unit.text, means_ns)]
        of = f" of {one.modules} modules" if one.modules > 1 else ""
        rows.append(Row(one.name or "(the model)", cells, note=counted(one.calls, "call") + of))
    run_unit = f"{call_unit.name} a call"
    headers = [f"{unit.name} per step", "forward", "backward", run_unit, "backward"]
    return _table(choice, headers, rows)


_RANK_KEYS: _Keys = {
    "first": _as_recorded,
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
        row("memory", _memory),
    ]
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
    condition = run.sign_of_life.condition
    return f"{_SIGNS[condition][0]} {condition.value}"


def _memory(run: LiveRun) -> str:
    allocated = None if run.memory is None else run.memory.allocated_bytes
    return UNKNOWN if allocated is None else size(allocated)


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


VIEWS = (
    View("Phases", _PHASE_KEYS, _phases),
    View("Waits", _WAIT_KEYS, _waits),
    View("Metrics", _METRIC_KEYS, _metrics),
    View("Steps", _STEP_KEYS, _steps),
    View("Modules", _MODULE_KEYS, _modules),
    View("Ranks", _RANK_KEYS, _ranks),
    View("Recorder", {"all": _as_recorded}, _recorder),
)


def _figure(value: float | None) -> str:
    """Three digits."""
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
