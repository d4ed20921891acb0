# SPDX-License-Identifier: Apache-2.0
"""The live view of a run that is being recorded: plain data, made of what a follower holds.

Figures are of the whole run, from its statistics, or of the *window*: the whole steps that ended in
the last 30 seconds, or the last three if those took longer. Neither has the times of steps that
torch.profiler has slowed. Times are nanoseconds, None is what is not known, and series end with
their newest value. The attributes are the keys of `watch --json`, which docs/page.md describes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pyinstrument_gpu.analysis.step_times import in_unfinished_steps
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import live_views
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.live import LiveWindow, places_in_series
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, known_mean_ns
from pyinstrument_gpu.report.slow_steps import SlowStep
from pyinstrument_gpu.watch.heartbeat import Heartbeat
from pyinstrument_gpu.watch.slow_steps import LiveSlowSteps, SlowStepSums

_NEWEST_STEPS = 20


@dataclass(frozen=True)
class LiveStep:
    """A recent step; `slow` is what made it slow, None where it is not."""

    index: int
    duration_ns: int
    complete: bool
    slow: str | None = None


@dataclass(frozen=True)
class LiveSteps:
    """The steps of a run."""

    count: int
    open_index: int | None
    open_ns: int | None
    mean_ns: float | None
    p50_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    window_steps: int
    window_ns: int
    window_mean_ns: float | None
    window_per_s: float | None
    window_samples_per_s: float | None
    series_ns: tuple[float, ...]
    newest: tuple[LiveStep, ...]
    slow: int
    slow_ns: dict[str, int]
    last_slow: SlowStep | None
    last_slow_words: str | None


@dataclass(frozen=True)
class LivePhase:
    """A phase, by its path."""

    path: str
    is_open: bool
    calls: int
    mean_ns: float | None
    p99_ns: int | None
    per_step_ns: float | None
    device_mean_ns: float | None
    window_calls: int
    window_calls_per_s: float | None
    window_mean_ns: float | None
    window_per_step_ns: float | None
    window_share: float | None
    series_ns: tuple[float, ...]


@dataclass(frozen=True)
class LiveRecorder:
    """The state of the recorder."""

    thread_share: float | None
    dropped: dict[str, int]
    damaged_blocks: int
    error: str | None


@dataclass(frozen=True)
class LiveRun:
    """A run that is being recorded.

    Attributes:
        aspects: what is shown of each, by the key of its `LiveView`.
    """

    file: str
    run_id: str | None
    host: str | None
    pid: int | None
    rank: int | None
    world_size: int | None
    command: tuple[str, ...]
    heartbeat: Heartbeat
    duration_ns: int
    steps: LiveSteps
    phases: tuple[LivePhase, ...]
    aspects: dict[str, Any]
    recorder: LiveRecorder
    profiled: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def live_run(
    file: str,
    run: Run,
    state: State,
    sign: Heartbeat,
    damaged_blocks: int = 0,
    slow: LiveSlowSteps | None = None,
) -> LiveRun:
    """Return the view of a run. Linear in the history that `run` holds.

    Args:
        run: as `Run.from_blocks` makes it of what a follower holds.
        state: its STATE.
        sign: how it is.
        damaged_blocks: as the follower counts them.
        slow: its slow steps, as they were counted from look to look.
    """
    window = LiveWindow.of(run, is_whole=state.spans <= len(run.spans) + len(run.module_spans))
    recorded = ("run_id", "host", "pid", "rank", "world_size")
    return LiveRun(
        file=file,
        **{name: run.environment.get(name) for name in recorded},
        command=tuple(run.environment.get("command", ())),
        heartbeat=sign,
        duration_ns=run.duration_ns,
        steps=_steps(run, state, window, slow or SlowStepSums().look(run)),
        phases=tuple(_phases(run, window)),
        aspects={view.key: view.look(run, window) for view in live_views()},
        recorder=LiveRecorder(
            thread_share=run.harvester_cpu_ns / run.duration_ns if run.duration_ns else None,
            dropped={cause: count for cause, count in run.dropped.items() if count},
            damaged_blocks=damaged_blocks,
            error=state.error,
        ),
        profiled=run.profiled.ranges,
        notes=tuple(note for note in run.notes if not note.startswith(_SAID_OTHERWISE)),
    )


# Notes on a run that is still written, of which all is missing that comes next.
_SAID_OTHERWISE = (
    "the recording was not stopped",
    "missing at the end of the history",
    "the statistics ",
    "the history ends early",
)


def _steps(run: Run, state: State, window: LiveWindow, slow: LiveSlowSteps) -> LiveSteps:
    totals, closed, open_step = run.step_totals, run.steps.closed, run.open_step
    durations_ns = durations_ns_of(closed)
    places = places_in_series(len(closed))
    means_ns = np.bincount(places, durations_ns) / np.maximum(np.bincount(places), 1)
    steps, whole = window.steps, totals.duration
    samples = float(steps["samples"].sum()) if len(steps) else math.nan
    known = whole.count > 0
    newest = closed[-_NEWEST_STEPS:]
    return LiveSteps(
        count=max(totals.count + run.profiled_totals.count, state.steps),
        open_index=None if open_step is None else open_step.index,
        open_ns=None if open_step is None else max(0, run.duration_ns - open_step.begin_ns),
        mean_ns=whole.mean_ns if known else None,
        p50_ns=whole.p50_ns if known else None,
        p99_ns=whole.p99_ns if known else None,
        max_ns=whole.max_ns if known else None,
        window_steps=len(steps),
        window_ns=window.duration_ns if len(steps) else 0,
        window_mean_ns=window.per_step(int(durations_ns_of(steps).sum())),
        window_per_s=window.per_second(len(steps)) if len(steps) else None,
        window_samples_per_s=None if math.isnan(samples) else window.per_second(samples),
        series_ns=tuple(means_ns.tolist()),
        newest=tuple(
            map(
                LiveStep,
                newest["index"].tolist(),
                durations_ns[-_NEWEST_STEPS:].tolist(),
                newest["complete"].astype(bool).tolist(),
                map(slow.causes.get, newest["index"].tolist()),
            )
        ),
        slow=slow.count,
        slow_ns=slow.excess_ns,
        last_slow=slow.last,
        last_slow_words=slow.words,
    )


def _phases(run: Run, window: LiveWindow) -> Iterator[LivePhase]:
    spans = run.spans
    places = window.places_of(spans["step"])
    chosen = (places >= 0) | ((spans["step"] < 0) & (spans["host_begin_ns"] >= window.begin_ns))
    spans, places = spans[chosen], places[chosen]
    times_ns = durations_ns_of(spans, "host_")
    paths, in_step = spans["path"].astype(np.int64), places >= 0
    on_thread = in_step & (span_scopes(spans) == Scope.STEP)
    count, cells = len(run.paths), len(window.sizes)
    calls = np.bincount(paths, minlength=count).tolist()
    total_ns, step_ns, thread_ns = (
        np.bincount(paths[some], times_ns[some], count).tolist()
        for some in (slice(None), in_step, on_thread)
    )
    cell = paths[in_step] * cells + window.series[places[in_step]]
    sums_ns = np.bincount(cell, times_ns[in_step], count * cells).reshape(count, cells)
    series_ns = (sums_ns / np.maximum(window.sizes, 1)).tolist()
    steps_ns = int(durations_ns_of(window.steps).sum())
    open_paths = {phase.path for phase in run.open_phases}
    open_paths |= {path.rpartition("/")[0] for path in open_paths}
    ended_ns = _ended_ns(run)
    for number, path in enumerate(run.paths):
        whole = run.phases.get(path, PhaseStatistics())
        in_window = bool(step_ns[number]) or number in ended_ns
        yield LivePhase(
            path=path,
            is_open=path in open_paths,
            calls=whole.count,
            mean_ns=known_mean_ns(whole.host),
            p99_ns=whole.host.p99_ns if whole.host is not None and whole.count else None,
            per_step_ns=ended_ns[number] / run.step_totals.count if number in ended_ns else None,
            device_mean_ns=known_mean_ns(whole.device),
            window_calls=calls[number],
            window_calls_per_s=window.per_second(calls[number]),
            window_mean_ns=total_ns[number] / calls[number] if calls[number] else None,
            window_per_step_ns=window.per_step(step_ns[number]) if in_window else None,
            window_share=thread_ns[number] / steps_ns if thread_ns[number] else None,
            series_ns=tuple(series_ns[number]) if in_window else (),
        )


def _ended_ns(run: Run) -> dict[int, int]:
    """The time of each path in the steps that have ended; empty if none has."""
    if not run.step_totals.count:
        return {}
    unfinished = in_unfinished_steps(run, run.steps.array[:0])
    found: dict[int, int] = {}
    for key, of in run.statistics.items():
        if key[1] in (Scope.STEP, Scope.OTHER_THREADS):
            still = unfinished.get(key, PhaseStatistics())
            found[key[0]] = found.get(key[0], 0) + _total_ns(of) - _total_ns(still)
    return found


def _total_ns(of: PhaseStatistics) -> int:
    return 0 if of.host is None else of.host.total_ns


def json_of(run: LiveRun) -> dict[str, Any]:
    """The run as `watch --json` has it."""
    found: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(run).items():
        found.update(value if name == "aspects" else {name: value})
    return found


def spread(values: Sequence[float | None]) -> float | None:
    """Return by which share the largest of some values exceeds the smallest; None if unknown."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or min(known) <= 0:
        return None
    return max(known) / min(known) - 1
