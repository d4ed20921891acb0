# SPDX-License-Identifier: Apache-2.0
"""What is shown of a run that is being recorded: plain data, made of what a follower holds.

Figures are of the whole run, from its statistics, or of the *window*: the whole steps that ended in
the last 30 seconds, or the last three if those took longer. Neither has the times of steps that
torch.profiler has slowed. Times are nanoseconds, None is what is not known, and series end with
their newest value. The attributes are the keys of `watch --json`, which docs/watch.md describes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import in_unfinished_steps
from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.arrays import places_in
from pyinstrument_gpu.core.file.framing import PAYLOAD_BYTES
from pyinstrument_gpu.core.file.items import SPAN_ITEM
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.watch.sign_of_life import SignOfLife

WINDOW_NS = 30 * 10**9
_LEAST_STEPS = 3
SERIES = 24
"""At most so many values has a series: the means of steps that follow one another."""
_NEWEST_STEPS = 20
_SPANS_OF_A_BLOCK = PAYLOAD_BYTES // SPAN_ITEM.itemsize


@dataclass(frozen=True)
class LiveStep:
    """One of the newest steps."""

    index: int
    duration_ns: int
    complete: bool


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
class LiveWait:
    """A line of the program that makes the host wait for a device."""

    line: str
    function: str
    kind: str
    is_allowed: bool
    count: int
    blocked_ns: int | None
    window_count: int
    window_blocked_ns: int | None
    window_per_step_ns: float | None
    series_ns: tuple[float, ...]


@dataclass(frozen=True)
class LiveMetric:
    """A metric."""

    name: str
    value: float | None
    text: str
    step: int | None
    age_ns: int
    series: tuple[float | None, ...]


@dataclass(frozen=True)
class LiveMemory:
    """Memory, at the end of the last step that was read."""

    device: int | None
    step: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    out_of_memory: int
    series_bytes: tuple[int, ...]


@dataclass(frozen=True)
class LiveModule:
    """A module of the model, or a group that differs by an index alone."""

    name: str
    modules: int
    calls: int
    forward_mean_ns: float | None
    backward_mean_ns: float | None
    window_forward_per_step_ns: float | None
    window_backward_per_step_ns: float | None


@dataclass(frozen=True)
class LiveRecorder:
    """How the recorder is."""

    thread_share: float | None
    dropped: dict[str, int]
    damaged_blocks: int
    error: str | None


@dataclass(frozen=True)
class LiveRun:
    """A run that is being recorded."""

    file: str
    run_id: str | None
    host: str | None
    pid: int | None
    rank: int | None
    world_size: int | None
    command: tuple[str, ...]
    sign_of_life: SignOfLife
    duration_ns: int
    steps: LiveSteps
    phases: tuple[LivePhase, ...]
    waits: tuple[LiveWait, ...] | None
    metrics: tuple[LiveMetric, ...]
    memory: LiveMemory | None
    modules: tuple[LiveModule, ...]
    recorder: LiveRecorder
    profiled: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def live_run(
    file: str, run: Run, state: State, sign: SignOfLife, damaged_blocks: int = 0
) -> LiveRun:
    """What is shown of a run. Linear in the history that `run` holds.

    Args:
        run: as `Run.from_blocks` makes it of what a follower holds.
        state: its STATE.
        sign: how it is.
        damaged_blocks: as the follower counts them.
    """
    window = _Window.of(run, is_whole=state.spans <= len(run.spans) + len(run.module_spans))
    recorded = ("run_id", "host", "pid", "rank", "world_size")
    return LiveRun(
        file=file,
        **{name: run.environment.get(name) for name in recorded},
        command=tuple(run.environment.get("command", ())),
        sign_of_life=sign,
        duration_ns=run.duration_ns,
        steps=_steps(run, state, window),
        phases=tuple(_phases(run, window)),
        waits=_waits(run, window) if run.syncs.was_watched else None,
        metrics=tuple(_metrics(run)),
        memory=_memory(run),
        modules=tuple(_modules(run, window)),
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


@dataclass(frozen=True)
class _Window:
    """The steps of the window, and the time that it takes.

    Attributes:
        steps: the steps (`STEP_DTYPE`).
        begin_ns, end_ns: of the window, also where it has no steps.
        series: of each step the place in a series.
        sizes: how many steps each place has.
    """

    steps: NDArray[np.void]
    begin_ns: int
    end_ns: int
    series: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, run: Run, is_whole: bool) -> _Window:
        # Of steps that began before the oldest spans that are kept had ended, spans may be missing.
        oldest = run.spans["host_end_ns"][: 1 if is_whole else _SPANS_OF_A_BLOCK]
        known_from_ns = 0 if is_whole else int(oldest.max(initial=0))
        steps = run.steps.closed
        steps = steps[steps["begin_ns"] >= known_from_ns]
        steps = steps[~run.profiled.among(steps["index"])]
        end_ns = int(steps["end_ns"][-1]) if len(steps) else run.duration_ns
        recent = steps[steps["end_ns"] > end_ns - WINDOW_NS]
        recent = recent if len(recent) >= _LEAST_STEPS else steps[-_LEAST_STEPS:]
        if len(recent):
            begin_ns = int(recent["begin_ns"][0])
        else:
            begin_ns = max(known_from_ns, end_ns - WINDOW_NS)
        series = _places(len(recent))
        return cls(recent, begin_ns, end_ns, series, np.bincount(series))

    @property
    def duration_ns(self) -> int:
        return max(0, self.end_ns - self.begin_ns)

    def per_second(self, count: float) -> float | None:
        return count / self.duration_ns * 1e9 if self.duration_ns else None

    def per_step(self, total_ns: float) -> float | None:
        return total_ns / len(self.steps) if len(self.steps) else None

    def places_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each index of a step its place among the window's; -1 if it is none of them."""
        return places_in(self.steps["index"], steps)

    def series_of(
        self, places: NDArray[np.int64], times_ns: NDArray[np.int64]
    ) -> tuple[float, ...]:
        """Time per step along the window."""
        sums = np.bincount(self.series[places], times_ns, len(self.sizes))
        return tuple((sums / self.sizes).tolist())


def _places(count: int) -> NDArray[np.int64]:
    """Which place in a series each of so many values has."""
    places: NDArray[np.int64] = np.arange(count) * min(SERIES, count) // max(1, count)
    return places


def _steps(run: Run, state: State, window: _Window) -> LiveSteps:
    totals, closed, open_step = run.step_totals, run.steps.closed, run.open_step
    durations_ns = closed["end_ns"] - closed["begin_ns"]
    places = _places(len(closed))
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
        window_mean_ns=window.per_step(int((steps["end_ns"] - steps["begin_ns"]).sum())),
        window_per_s=window.per_second(len(steps)) if len(steps) else None,
        window_samples_per_s=None if math.isnan(samples) else window.per_second(samples),
        series_ns=tuple(means_ns.tolist()),
        newest=tuple(
            map(
                LiveStep,
                newest["index"].tolist(),
                durations_ns[-_NEWEST_STEPS:].tolist(),
                newest["complete"].astype(bool).tolist(),
            )
        ),
    )


def _phases(run: Run, window: _Window) -> Iterator[LivePhase]:
    spans = run.spans
    places = window.places_of(spans["step"])
    chosen = (places >= 0) | ((spans["step"] < 0) & (spans["host_begin_ns"] >= window.begin_ns))
    spans, places = spans[chosen], places[chosen]
    times_ns = spans["host_end_ns"] - spans["host_begin_ns"]
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
    steps_ns = int((window.steps["end_ns"] - window.steps["begin_ns"]).sum())
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
            mean_ns=_mean(whole.host),
            p99_ns=whole.host.p99_ns if whole.host is not None and whole.count else None,
            per_step_ns=ended_ns[number] / run.step_totals.count if number in ended_ns else None,
            device_mean_ns=_mean(whole.device),
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


def _mean(statistic: Statistic | None) -> float | None:
    return None if statistic is None or not statistic.count else statistic.mean_ns


def _waits(run: Run, window: _Window) -> tuple[LiveWait, ...]:
    syncs = run.syncs
    events = syncs.events[syncs.events["begin_ns"] >= window.begin_ns]
    places = window.places_of(events["step"])
    found = []
    for number, site in enumerate(syncs.sites):
        if not site.totals.count:
            continue
        of_site = events["site"] == number
        priced = of_site & (events["duration_ns"] >= 0)
        in_step = priced & (places >= 0)
        is_priced = site.totals.priced > 0
        blocked_ns = int(events["duration_ns"][priced].sum())
        in_steps_ns = events["duration_ns"][in_step]
        found.append(
            LiveWait(
                line=run.name_of_line(site.program),
                function=site.function,
                kind=site.kind.label,
                is_allowed=site.is_allowed,
                count=site.totals.count,
                blocked_ns=site.blocked_ns,
                window_count=int(of_site.sum()),
                window_blocked_ns=blocked_ns if is_priced else None,
                window_per_step_ns=window.per_step(int(in_steps_ns.sum())) if is_priced else None,
                series_ns=window.series_of(places[in_step], in_steps_ns) if is_priced else (),
            )
        )
    return tuple(sorted(found, key=lambda wait: (-(wait.blocked_ns or 0), -wait.count)))


def _metrics(run: Run) -> Iterator[LiveMetric]:
    for number, name in enumerate(run.metric_names):
        readings = run.metrics[run.metrics["name"] == number]
        if not len(readings):
            continue
        last = readings[-1]
        value, step = float(last["value"]), int(last["step"])
        yield LiveMetric(
            name=name,
            value=_finite(value),
            text=f"{value:.6g}",
            step=step if step >= 0 else None,
            age_ns=max(0, run.duration_ns - int(last["host_ns"])),
            series=tuple(map(_finite, readings["value"][-SERIES:].tolist())),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _memory(run: Run) -> LiveMemory | None:
    memory = run.memory
    if memory is None:
        return None
    last: dict[str, int | None] = dict.fromkeys(MEMORY_POINT_DTYPE.names or ())
    if len(memory.points):
        last = dict(zip(last, memory.points[-1].tolist(), strict=True))
    reserved = last["reserved_bytes"]
    return LiveMemory(
        device=memory.device,
        step=last["step"],
        allocated_bytes=last["allocated_bytes"],
        reserved_bytes=None if reserved is None or reserved < 0 else reserved,
        peak_bytes=memory.peak_bytes,
        out_of_memory=memory.out_of_memory_count,
        series_bytes=tuple(memory.points["allocated_bytes"][-SERIES:].tolist()),
    )


def _modules(run: Run, window: _Window) -> Iterator[LiveModule]:
    row_of = {
        member: row for row, name in enumerate(run.modules) for member in run.modules.of_group(name)
    }
    rows = np.array([row_of.get(name, -1) for name in run.module_names], np.int64)
    places = window.places_of(run.module_spans["step"])
    passes = run.module_spans[places >= 0]
    # Modules may be timed in some of the steps only.
    steps = len(np.unique(places[places >= 0]))
    times_ns = passes["host_end_ns"] - passes["host_begin_ns"]
    per_step_ns = {}
    for kind in (ModulePass.FORWARD, ModulePass.BACKWARD):
        chosen = (passes["kind"] == kind) & (rows[passes["module"]] >= 0)
        of_rows = rows[passes["module"][chosen]]
        sums_ns = np.bincount(of_rows, times_ns[chosen], len(run.modules)).tolist()
        per_step_ns[kind] = [ns / steps if steps else None for ns in sums_ns]
    for row, times in enumerate(run.modules.values()):
        yield LiveModule(
            name=times.name,
            modules=times.modules,
            calls=times.calls,
            forward_mean_ns=_mean(times.forward),
            backward_mean_ns=_mean(times.backward),
            window_forward_per_step_ns=per_step_ns[ModulePass.FORWARD][row],
            window_backward_per_step_ns=per_step_ns[ModulePass.BACKWARD][row],
        )


def spread(values: Sequence[float | None]) -> float | None:
    """By which share the largest of some values is above the smallest; None if that is unknown."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or min(known) <= 0:
        return None
    return max(known) / min(known) - 1
