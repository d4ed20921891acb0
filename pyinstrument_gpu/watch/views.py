# SPDX-License-Identifier: Apache-2.0
"""What `watch` shows, as text: functions of what was seen at the last look.

Each view is a table that fits a terminal of 80 columns; wider ones get more columns. Nothing is
said by a colour alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from pyinstrument_gpu.core.condition import Condition
from pyinstrument_gpu.parts.parts import Row, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, printable, size
from pyinstrument_gpu.report.console import rich_table
from pyinstrument_gpu.watch.live_run import SERIES, LivePhase, LiveRun, LiveWait, spread
from pyinstrument_gpu.watch.sign_of_life import time_text
from pyinstrument_gpu.watch.watched_run import Unreadable

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


@dataclass(frozen=True)
class View:
    """One of the tables.

    Attributes:
        name: of its tab.
        sorts: what it can be sorted by.
        render: makes it of a run, the runs of all ranks, a choice and a width.
    """

    name: str
    sorts: tuple[str, ...]
    render: Callable[[LiveRun, Sequence[LiveRun | Unreadable], Choice, int], RenderableType]


def sparkline(values: Sequence[float | None], from_zero: bool = True) -> str:
    """Values as a row of blocks; a space for what is not known. From zero to the largest, or from
    the smallest to the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = (0.0 if from_zero else min(known)), max(known)
    size = high - low
    if size <= 0:
        return "".join(" " if value is None else _BLOCKS[0] for value in values)
    scale = (len(_BLOCKS) - 1) / size
    return "".join(
        " " if value is None else _BLOCKS[max(0, round((value - low) * scale))] for value in values
    )


def heading(run: LiveRun | Unreadable, width: int) -> Text:
    """Four lines: which run it is, how it is, its steps, memory and the recorder."""
    if isinstance(run, Unreadable):
        return _lines([Text(f"■ {printable(run.file)}"), Text(printable(run.reason))], width)
    sign = run.sign_of_life
    symbol, colour = _SIGNS[sign.condition]
    title = Text.assemble((f"{symbol} {sign.condition.value}", f"bold {colour}"), "  ")
    title.append(printable(os.path.basename(run.file)), "bold")
    if run.world_size is not None and run.world_size > 1:
        title.append(f"  rank {run.rank} of {run.world_size}")
    if run.host is not None:
        process = "" if run.pid is None else f", process {run.pid}"
        title.append(f"  {printable(run.host)}{process}", "dim")
    return _lines(
        [title, Text(printable(sign.words)), _steps_line(run), _health_line(run, width)], width
    )


def _lines(lines: Sequence[Text], width: int) -> Text:
    for line in lines:
        line.truncate(max(1, width), overflow="ellipsis")
    return Text("\n").join(lines)


def _steps_line(run: LiveRun) -> Text:
    steps = run.steps
    if not steps.count:
        return Text("no step has ended yet" if steps.open_index is not None else "no steps so far")
    unit = Unit.fitting(max(steps.window_mean_ns or 0, steps.p99_ns or 0, 1))
    facts = [counted(steps.count, "step")]
    if steps.window_per_s is not None:
        facts.append(f"{_figure(steps.window_per_s)}/s")
    if steps.window_mean_ns is not None:
        facts.append(f"{unit.text(steps.window_mean_ns)} {unit.name} a step")
    facts.append(f"(run: p50 {unit.text(steps.p50_ns)}, p99 {unit.text(steps.p99_ns)})")
    if steps.window_samples_per_s is not None:
        facts.append(f"{_figure(steps.window_samples_per_s)} samples/s")
    return Text("  ".join(facts))


def _health_line(run: LiveRun, width: int) -> Text:
    line = Text()
    if run.steps.series_ns:
        # In a narrow terminal the newest of them, so that the rest of the line is seen.
        newest = run.steps.series_ns[-(SERIES if width >= _WIDE else SERIES // 2) :]
        line.append(sparkline(newest), "cyan")
        line.append("  ")
    if run.memory is not None and run.memory.allocated_bytes is not None:
        where = "process" if run.memory.device is None else f"cuda:{run.memory.device}"
        line.append(f"{where} {size(run.memory.allocated_bytes)}")
        if run.memory.peak_bytes is not None:
            line.append(f", peak {size(run.memory.peak_bytes)}")
        line.append("  ")
    share = run.recorder.thread_share
    line.append("recorder " + (UNKNOWN if share is None else f"{100 * share:.1f} % of a core"))
    dropped = sum(run.recorder.dropped.values())
    problems = [f"{dropped:,} dropped"] if dropped else []
    if run.recorder.damaged_blocks:
        problems.append(counted(run.recorder.damaged_blocks, "damaged block"))
    if run.memory is not None and run.memory.out_of_memory:
        problems.append(f"out of memory {counted(run.memory.out_of_memory, 'time')}")
    if problems:
        line.append("  ! " + ", ".join(problems), "yellow")
    return line


def _phases(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    phases = [phase for phase in run.phases if phase.calls or phase.window_calls or phase.is_open]
    if not phases:
        return Text("no phase has been recorded yet")
    largest = max(phase.window_per_step_ns or phase.per_step_ns or 0 for phase in phases)
    outside = max(phase.window_mean_ns or phase.mean_ns or 0 for phase in phases)
    unit, call_unit = Unit.fitting(largest or outside), Unit.fitting(outside)
    as_tree = choice.sort == "tree"
    keys: dict[str, Callable[[LivePhase], tuple[float, str]]] = {
        "time": lambda phase: (-(phase.window_per_step_ns or 0), phase.path),
        "change": lambda phase: (-(_change(phase) or 0), phase.path),
        "calls": lambda phase: (-(phase.window_calls_per_s or 0), phase.path),
        "name": lambda phase: (0, phase.path),
    }
    shown = _tree(phases) if as_tree else sorted(phases, key=keys[choice.sort])
    # Where the filter takes a phase, the ones around it stay, for it to have its place.
    taken = {phase.path for phase in shown if choice.takes(phase.path)}
    around = {path[:end] for path in taken for end in _slashes(path)} if as_tree else set()
    is_wide = width >= _WIDE
    rows = []
    for phase in shown:
        if phase.path not in taken | around:
            continue
        depth = phase.path.count("/") if as_tree else 0
        name = phase.path.rpartition("/")[2] if as_tree else phase.path
        cells = [
            unit.text(phase.window_per_step_ns),
            _percent(phase.window_share),
            unit.text(phase.per_step_ns),
            _signed_percent(_change(phase)),
            UNKNOWN if phase.window_calls_per_s is None else _figure(phase.window_calls_per_s),
        ]
        if is_wide:
            cells += [
                call_unit.text(phase.window_mean_ns),
                call_unit.text(phase.p99_ns),
                call_unit.text(phase.device_mean_ns),
                f"{phase.calls:,}",
            ]
        name = name.replace("%2F", "/").replace("%25", "%")
        mark = "▶ " if phase.is_open else "  "
        rows.append(Row(mark + name, cells, depth, sparkline(phase.series_ns)))
    headers = [f"  {unit.name} per step", "now", "% step", "run", "change", "calls/s"]
    if is_wide:
        headers += [f"{call_unit.name} a call", "p99", "on GPU", "calls"]
    return rich_table(table(headers, [rows]), width) if rows else _nothing(choice)


def _tree(phases: Sequence[LivePhase]) -> list[LivePhase]:
    """Each phase behind the one around it, else in order of first appearance."""
    by_parent: dict[str, list[LivePhase]] = {}
    known = {phase.path for phase in phases}
    for phase in phases:
        parent = phase.path.rpartition("/")[0]
        by_parent.setdefault(parent if parent in known else "", []).append(phase)
    ordered: list[LivePhase] = []

    def visit(parent: str) -> None:
        for phase in by_parent.get(parent, ()):
            ordered.append(phase)
            visit(phase.path)

    visit("")
    return ordered


def _slashes(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/"]


def _change(phase: LivePhase) -> float | None:
    if not phase.per_step_ns or phase.window_per_step_ns is None:
        return None
    return phase.window_per_step_ns / phase.per_step_ns - 1


def _waits(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    if run.waits is None:
        return Text("nobody watches for waits here: `pyinstrument-gpu run` or pig.watch_syncs()")
    if not run.waits:
        return Text("no line has made the host wait for the GPU so far")
    unit = Unit.fitting(max(wait.window_per_step_ns or 0 for wait in run.waits) or 1e6)
    keys: dict[str, Callable[[LiveWait], tuple[float, str]]] = {
        "time": lambda wait: (-(wait.blocked_ns or 0), wait.line),
        "now": lambda wait: (-(wait.window_per_step_ns or 0), wait.line),
        "count": lambda wait: (-wait.count, wait.line),
        "line": lambda wait: (0, wait.line),
    }
    rows = [
        Row(
            wait.line,
            [
                unit.text(wait.window_per_step_ns),
                UNKNOWN if wait.blocked_ns is None else f"{wait.blocked_ns / 1e9:,.2f}",
                f"{wait.count:,}",
                f"+{wait.window_count:,}",
            ],
            note=sparkline(wait.series_ns[-12:])
            + ("  " if wait.series_ns else "")
            + wait.kind
            + (" (allowed)" if wait.is_allowed else ""),
        )
        for wait in sorted(run.waits, key=keys[choice.sort])
        if choice.takes(wait.line)
    ]
    headers = ["line", f"{unit.name}/step", "total s", "waits", "window"]
    return rich_table(table(headers, [rows], whole_names=True), width) if rows else _nothing(choice)


def _metrics(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    if not run.metrics:
        return Text("no metric has been read so far: see MetricAccumulator")
    metrics = [metric for metric in run.metrics if choice.takes(metric.name)]
    if choice.sort == "name":
        metrics.sort(key=lambda metric: metric.name)
    rows = [
        Row(
            metric.name,
            [
                metric.text,
                UNKNOWN if metric.step is None else f"{metric.step:,}",
                time_text(metric.age_ns),
            ],
            note=sparkline(metric.series, from_zero=False),
        )
        for metric in metrics
    ]
    return (
        rich_table(table(["metric", "value", "step", "age"], [rows]), width)
        if rows
        else _nothing(choice)
    )


def _steps(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    steps = list(run.steps.newest)
    if not steps:
        return Text("no step has ended yet")
    longest = max(step.duration_ns for step in steps)
    unit = Unit.fitting(longest)
    room = max(8, width - 36)
    if choice.sort == "newest":
        steps.reverse()
    elif choice.sort == "longest":
        steps.sort(key=lambda step: -step.duration_ns)
    rows = [
        Row(
            f"{step.index:,}",
            [unit.text(step.duration_ns)],
            note="█" * max(1, round(step.duration_ns / longest * room))
            + ("" if step.complete else " not complete"),
        )
        for step in steps
        if choice.takes(str(step.index))
    ]
    return rich_table(table(["step", unit.name], [rows]), width) if rows else _nothing(choice)


def _modules(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    if not run.modules:
        return Text("modules are not watched: `pyinstrument-gpu run --modules`")

    def total_ns(index: int) -> float:
        one = run.modules[index]
        return (one.window_forward_per_step_ns or 0) + (one.window_backward_per_step_ns or 0)

    order = list(range(len(run.modules)))
    if choice.sort == "time":
        order.sort(key=lambda index: -total_ns(index))
    elif choice.sort == "name":
        order.sort(key=lambda index: run.modules[index].name)
    unit = Unit.fitting(max(map(total_ns, order)) or 1e6)
    means_ns = [one.forward_mean_ns or one.backward_mean_ns or 0 for one in run.modules]
    call_unit = Unit.fitting(max(means_ns))
    rows = [
        Row(
            one.name or "(the model)",
            [
                unit.text(one.window_forward_per_step_ns),
                unit.text(one.window_backward_per_step_ns),
                call_unit.text(one.forward_mean_ns),
                call_unit.text(one.backward_mean_ns),
            ],
            note=f"{counted(one.calls, 'call')}"
            + (f" of {one.modules} modules" if one.modules > 1 else ""),
        )
        for one in (run.modules[index] for index in order)
        if choice.takes(one.name)
    ]
    run_unit = f"{call_unit.name} a call"
    headers = [f"{unit.name} per step", "forward", "backward", run_unit, "backward"]
    return rich_table(table(headers, [rows]), width) if rows else _nothing(choice)


def _ranks(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    ranks = [one for one in runs if isinstance(one, LiveRun)]
    unit = Unit.fitting(max((one.steps.window_mean_ns or 0 for one in ranks), default=0) or 1e6)
    columns = ["this run" if one.rank is None else f"rank {one.rank}" for one in ranks]
    # The selected one is marked, and as many stand beside it as there is room for.
    fitting = max(1, (width - 34) // 12)
    at = next((place for place, one in enumerate(ranks) if one is run), 0)
    first = max(0, min(at - fitting // 2, len(ranks) - fitting))
    chosen = range(first, min(first + fitting, len(ranks)))

    def row(name: str, text: Callable[[LiveRun], str], apart: str = "") -> Row:
        return Row(name, [apart, *(text(ranks[place]) for place in chosen)])

    facts = [
        row(
            "is",
            lambda one: (
                f"{_SIGNS[one.sign_of_life.condition][0]} {one.sign_of_life.condition.value}"
            ),
        ),
        row("step", lambda one: f"{one.steps.count:,}"),
        row(
            "steps/s",
            lambda one: (
                UNKNOWN if one.steps.window_per_s is None else _figure(one.steps.window_per_s)
            ),
        ),
        row(
            f"{unit.name} a step",
            lambda one: unit.text(one.steps.window_mean_ns),
            _percent(spread([one.steps.window_mean_ns for one in ranks])),
        ),
        row(
            "memory",
            lambda one: (
                UNKNOWN
                if one.memory is None or one.memory.allocated_bytes is None
                else size(one.memory.allocated_bytes)
            ),
        ),
    ]
    by_path: dict[str, dict[int, float | None]] = {}
    for place, one in enumerate(ranks):
        for phase in one.phases:
            by_path.setdefault(phase.path, {})[place] = phase.window_per_step_ns
    phases = []
    for path, times in by_path.items():
        if choice.takes(path) and any(time is not None for time in times.values()):
            values = [times.get(place) for place in range(len(ranks))]
            cells = [_percent(spread(values)), *(unit.text(values[place]) for place in chosen)]
            phases.append((Row(path, cells), max(value or 0 for value in values), spread(values)))
    if choice.sort == "time":
        phases.sort(key=lambda one: -one[1])
    elif choice.sort == "spread":
        phases.sort(key=lambda one: -(one[2] or 0))
    headers = ["", "spread", *((">" if place == at else "") + columns[place] for place in chosen)]
    shown = rich_table(table(headers, [facts, [row for row, _, _ in phases]]), width)
    unreadable = [
        Text(f"{printable(one.file)}: {printable(one.reason)}", "yellow")
        for one in runs
        if isinstance(one, Unreadable)
    ]
    hidden = len(ranks) - len(chosen)
    more = [Text(f"{hidden} more: ← and →", "dim")] if hidden else []
    return Group(shown, *more, *unreadable)


def _recorder(
    run: LiveRun, runs: Sequence[LiveRun | Unreadable], choice: Choice, width: int
) -> RenderableType:
    recorder = run.recorder
    lines = [
        f"run file: {run.file}",
        f"command: {' '.join(run.command) or 'unknown'}",
        f"recorded for {time_text(run.duration_ns)}",
        "its thread used "
        + (
            "an unknown share of one core"
            if recorder.thread_share is None
            else f"{100 * recorder.thread_share:.2f} % of one core"
        ),
    ]
    lines += [f"dropped ({cause}): {count:,}" for cause, count in recorder.dropped.items()]
    lines += [] if recorder.dropped else ["nothing dropped"]
    if recorder.damaged_blocks:
        lines.append(f"{counted(recorder.damaged_blocks, 'block')} of the file can't be read")
    if recorder.error is not None:
        lines.append(f"the history ends early: {recorder.error}")
    for first, last in run.profiled:
        lines.append(f"steps {first} to {last} were profiled: `pyinstrument-gpu report` shows them")
    lines += run.notes
    return Text("\n".join(printable(line) for line in lines if choice.takes(line)))


def _nothing(choice: Choice) -> Text:
    return Text(f"nothing has {choice.filter!r} in its name")


VIEWS = (
    View("Phases", ("tree", "time", "change", "calls", "name"), _phases),
    View("Waits", ("time", "now", "count", "line"), _waits),
    View("Metrics", ("first", "name"), _metrics),
    View("Steps", ("newest", "oldest", "longest"), _steps),
    View("Modules", ("time", "first", "name"), _modules),
    View("Ranks", ("first", "time", "spread"), _ranks),
    View("Recorder", ("all",), _recorder),
)


def _figure(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _signed_percent(share: float | None) -> str:
    percent = None if share is None else round(100 * share)
    return UNKNOWN if percent is None else f"{percent:+d} %" if percent else "0 %"
