# SPDX-License-Identifier: Apache-2.0
"""What a report says about the device: its times next to the host's, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.bottleneck import Bottleneck, PhaseBottleneck
from pyinstrument_gpu.analysis.run_ahead import RunAhead
from pyinstrument_gpu.model.groups import groups
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SpanFlag
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.report.phase_tree import MAX_PATHS, phase_table
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, counted, duration

_WIDTH_FOR_QUANTILES = 100
_LEGEND = {
    Bottleneck.LAUNCH: "launch: the device waited for the host to enqueue work",
    Bottleneck.DEVICE: "device: it still had a backlog when the host had enqueued everything",
    Bottleneck.BLOCKED: "blocked: the host waited for the device inside the phase",
    Bottleneck.MIXED: "mixed: neither device nor host was the bottleneck most of the time",
}
_LAUNCH_UNSURE = "launch?: launch or blocked; waits for the device were not measured"
_TIMES = ("phase", "timed", "host", "device")
_WIDE_HEADERS = (*_TIMES, "p50", "p95", "ahead", "ahead p95", "bottleneck")
_HEADERS = (*_TIMES, "p95", "ahead", "bottleneck")


def device_times(run: RunData, scope: Scope | None, width: int) -> Iterator[Text | Table]:
    """The table of phases with device times, and notes on it; nothing if there are none."""
    by_path = run.phases if scope is None else run.phases_in(scope)
    timed = {path: by_path[name] for path, name in enumerate(run.paths) if name in by_path}
    timed = {path: phase for path, phase in timed.items() if _timed_calls(phase)}
    if not timed:
        return
    found = analysis.of(run)
    ahead, bottlenecks = found.run_ahead(scope), found.bottlenecks(scope)
    unit = Unit.fitting(
        max(
            statistic.mean_ns
            for phase in timed.values()
            for statistic in (phase.host, phase.device)
            if statistic is not None and statistic.count
        )
    )
    wide = width >= _WIDTH_FOR_QUANTILES
    headers = _WIDE_HEADERS if wide else _HEADERS
    rows = {}
    for path, phase in timed.items():
        cells = _cells(phase, ahead.get(path), bottlenecks.get(path), unit)
        rows[path] = Row("", [cells[header] for header in headers[1:]])
    yield Text()
    yield Text(f"On the device: {unit.name} per call, stream time next to host time", "bold")
    yield from phase_table(run, headers, rows, width)
    yield from _coverage(run, timed, per_step=scope == Scope.STEP)
    known = sum(one.spans for path, one in ahead.items() if path in timed)
    calls = sum(_timed_calls(phase) for phase in timed.values())
    if known < calls:
        yield Text(
            f"ahead and bottleneck cover {known:,} of {calls:,} timed calls: the others are not in "
            "the history, or have no known position in time"
        )
    yield from _legend([bottlenecks[path] for path in timed if path in bottlenecks])
    yield from _clocks(run, max((one.uncertainty_ns for one in ahead.values()), default=0))


def unfinished_work(run: RunData) -> dict[str, int]:
    """The phases whose device work had not finished, with the number of those spans."""
    if run.pending_device_work:
        return run.pending_device_work
    unfinished = (run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED) != 0
    spans = groups(run.spans["path"][unfinished])
    return {run.paths[path]: len(places) for path, places in spans}


def unfinished_work_note(run: RunData) -> str | None:
    by_path = unfinished_work(run)
    if not by_path:
        return None
    names = [f"{path} ({counted(spans, 'span')})" for path, spans in by_path.items()]
    if len(names) > MAX_PATHS:
        names[MAX_PATHS:] = [counted(len(names) - MAX_PATHS, "more path")]
    return f"Device work not finished at the end: {', '.join(names)}."


def _timed_calls(phase: PhaseStatistics) -> int:
    return 0 if phase.device is None else phase.device.count


def _cells(
    phase: PhaseStatistics, ahead: RunAhead | None, bottleneck: PhaseBottleneck | None, unit: Unit
) -> dict[str, str]:
    """The cells of a row by column header, for all columns."""
    host, device = phase.host, phase.device
    assert device is not None
    return {
        "timed": str(device.count),
        "host": unit.text(None if host is None else host.mean_ns),
        "device": unit.text(device.mean_ns),
        "p50": unit.text(device.p50_ns),
        "p95": unit.text(device.p95_ns),
        "ahead": unit.text(None if ahead is None else ahead.p50_ns),
        "ahead p95": unit.text(None if ahead is None else ahead.p95_ns),
        "bottleneck": UNKNOWN if bottleneck is None else str(bottleneck),
    }


def _coverage(run: RunData, timed: Mapping[int, PhaseStatistics], per_step: bool) -> Iterator[Text]:
    every = 1 if run.device_timing is None else run.device_timing.every
    if every > 1:
        yield Text(f"The device was timed in one of every {every:,} steps, the host in all of them")
    calls = sum(phase.count for phase in timed.values())
    known = sum(_timed_calls(phase) for phase in timed.values())
    if known < calls:
        yield Text(
            f"Device times cover {known:,} of these phases' {calls:,} calls, host times all of them"
            + (". The table above uses their mean for all calls" if per_step else "")
        )


def _legend(shown: Sequence[PhaseBottleneck]) -> Iterator[Text]:
    yield Text("ahead: how long after the host the device began a call (median)", "dim")
    kinds = {bottleneck.kind for bottleneck in shown}
    for kind, text in _LEGEND.items():
        if kind in kinds:
            yield Text(text, "dim")
    if any(not bottleneck.is_certain for bottleneck in shown):
        yield Text(_LAUNCH_UNSURE, "dim")


def _clocks(run: RunData, worst_ns: float) -> Iterator[Text]:
    """How well clocks agree; `worst_ns` is the uncertainty of the worst of the times shown."""
    facts = []
    for clock in run.device_clocks:
        drift = "" if clock.drift_ppm is None else f", drift {clock.drift_ppm:.1f} ppm"
        facts.append(f"GPU {clock.device} within {duration(clock.uncertainty_ns)}{drift}")
    if worst_ns > max((clock.uncertainty_ns for clock in run.device_clocks), default=0):
        facts.append(f"some times only within {duration(worst_ns)}")
    if facts:
        yield Text("Clocks, compared to the host's: " + "; ".join(facts), "dim")
