# SPDX-License-Identifier: Apache-2.0
"""What is shown of a run that is being recorded: plain data, made of what a follower holds.

Figures are of the whole run, from its statistics, or of the *window*: the whole steps that ended in
the last 30 seconds, or the last three if those took longer. Neither has the times of steps that
torch.profiler has slowed. Times are nanoseconds, and None is what
is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import in_unfinished_steps
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.distinct import places_in
from pyinstrument_gpu.core.file.framing import PAYLOAD_BYTES
from pyinstrument_gpu.core.file.items import SPAN_ITEM
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistic import Statistic
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope
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
    """The steps of a run.

    Attributes:
        count: how many have ended.
        open_index: index of the step that is open.
        open_ns: how long it had been open at the last sign of life.
        mean_ns, p50_ns, p99_ns, max_ns: durations, of the whole run.
        window_steps, window_ns: steps of the window, and the time from the first's begin to the
            last's end.
        window_mean_ns: their mean duration.
        window_per_s, window_samples_per_s: steps and samples per second of the window.
        series_ns: mean durations of the steps that are kept, the newest last.
        newest: the last twenty, the newest last.
    """

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
    """A phase, by its path.

    Attributes:
        path: as in `Run.paths`.
        is_open: whether it is being executed.
        calls, mean_ns, p99_ns: of the whole run.
        per_step_ns: time per step, of the whole run; None outside of steps.
        device_mean_ns: mean stream time of the calls in the whole run that were timed.
        window_calls, window_calls_per_s, window_mean_ns: of the window.
        window_per_step_ns: time per step of the window.
        window_share: of the time of these steps, on the thread that opened them.
        series_ns: time per step in the window, the newest last.
    """

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
    """A line of the program that makes the host wait for a device.

    Attributes:
        line: `file:line`.
        function: name of the function around it.
        kind: what waits there.
        is_allowed: whether it is in an `allow_sync` region.
        count: waits in the whole run.
        blocked_ns: their time; None if it is not known.
        window_count, window_blocked_ns: how many, and how much, came in the window.
        window_per_step_ns: time per step of the window.
        series_ns: time per step in the window, the newest last.
    """

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
    """A metric.

    Attributes:
        name: its name.
        value: the last one that was read; None if it is not finite.
        text: that value as text: also "nan" and "inf".
        step: index of the step in which its last update was made.
        age_ns: how old it was at the last sign of life.
        series: values, the newest last; None for those that are not finite.
    """

    name: str
    value: float | None
    text: str
    step: int | None
    age_ns: int
    series: tuple[float | None, ...]


@dataclass(frozen=True)
class LiveMemory:
    """Memory, at the end of the last step that was read.

    Attributes:
        device: number of the device; None: it is the memory of the process.
        step: index of that step.
        allocated_bytes, reserved_bytes: in use then.
        peak_bytes: the most so far.
        out_of_memory: how often there was none left.
        series_bytes: allocated at the end of steps, the newest last.
    """

    device: int | None
    step: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    out_of_memory: int
    series_bytes: tuple[int, ...]


@dataclass(frozen=True)
class LiveModule:
    """A module of the model, or a group that differs by an index alone.

    Attributes:
        name: as in `Run.modules`.
        modules: how many modules the name stands for.
        calls: how often they were called in the whole run.
        forward_mean_ns, backward_mean_ns: of one call, and of one part of a backward pass, in the
            whole run; modules inside it included.
        window_forward_per_step_ns, window_backward_per_step_ns: time per step, of those steps of
            the window in which modules were timed.
    """

    name: str
    modules: int
    calls: int
    forward_mean_ns: float | None
    backward_mean_ns: float | None
    window_forward_per_step_ns: float | None
    window_backward_per_step_ns: float | None


@dataclass(frozen=True)
class LiveRecorder:
    """How the recorder is.

    Attributes:
        thread_share: what its thread has used of one core.
        dropped: what was not kept, by cause.
        damaged_blocks: blocks of the file that can't be read.
        error: why the history ends early.
    """

    thread_share: float | None
    dropped: dict[str, int]
    damaged_blocks: int
    error: str | None


@dataclass(frozen=True)
class LiveRun:
    """A run that is being recorded.

    Attributes:
        file: its run file.
        run_id, host, pid, rank, world_size: as in `Run.environment`.
        command: the command line.
        sign_of_life: how it is.
        duration_ns: from its begin to the last sign of life.
        waits: None if nobody watched for waits.
        profiled: the steps that torch.profiler saw, as pairs of the first and the last.
        notes: what is missing or went wrong.
    """

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
        run: as `decode_blocks` makes it of what a follower holds.
        state: its STATE.
        sign: how it is.
        damaged_blocks: as the follower counts them.
    """
    window = _Window.of(run, is_whole=state.spans <= len(run.spans) + len(run.module_spans))
    environment = run.environment
    return LiveRun(
        file=file,
        run_id=environment.get("run_id"),
        host=environment.get("host"),
        pid=environment.get("pid"),
        rank=environment.get("rank"),
        world_size=environment.get("world_size"),
        command=tuple(environment.get("command", ())),
        sign_of_life=sign,
        duration_ns=run.duration_ns,
        steps=_steps(run, state, window),
        phases=_phases(run, window),
        waits=_waits(run, window) if run.syncs.was_watched else None,
        metrics=_metrics(run),
        memory=_memory(run),
        modules=_modules(run, window),
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


def _means(values: NDArray[np.int64]) -> tuple[float, ...]:
    places = _places(len(values))
    sums = np.bincount(places, values)
    return tuple((sums / np.bincount(places)).tolist()) if len(values) else ()


def _steps(run: Run, state: State, window: _Window) -> LiveSteps:
    totals, closed, open_step = run.step_totals, run.steps.closed, run.open_step
    durations_ns = closed["end_ns"] - closed["begin_ns"]
    steps = window.steps
    samples = float(steps["samples"].sum()) if len(steps) else math.nan
    whole = totals.duration
    return LiveSteps(
        count=max(totals.count + run.profiled_totals.count, state.steps),
        open_index=None if open_step is None else open_step.index,
        open_ns=None if open_step is None else max(0, run.duration_ns - open_step.begin_ns),
        mean_ns=whole.mean_ns if whole.count else None,
        p50_ns=whole.p50_ns if whole.count else None,
        p99_ns=whole.p99_ns if whole.count else None,
        max_ns=whole.max_ns if whole.count else None,
        window_steps=len(steps),
        window_ns=window.duration_ns if len(steps) else 0,
        window_mean_ns=window.per_step(int((steps["end_ns"] - steps["begin_ns"]).sum())),
        window_per_s=window.per_second(len(steps)) if len(steps) else None,
        window_samples_per_s=None if math.isnan(samples) else window.per_second(samples),
        series_ns=_means(durations_ns),
        newest=tuple(
            LiveStep(
                int(step["index"]), int(step["end_ns"] - step["begin_ns"]), bool(step["complete"])
            )
            for step in closed[-_NEWEST_STEPS:]
        ),
    )


def _phases(run: Run, window: _Window) -> tuple[LivePhase, ...]:
    spans = run.spans
    places = window.places_of(spans["step"])
    outside = (spans["step"] < 0) & (spans["host_begin_ns"] >= window.begin_ns)
    chosen = (places >= 0) | outside
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
    sums = np.bincount(cell, times_ns[in_step], count * cells).reshape(count, cells)
    series = sums / np.maximum(window.sizes, 1)
    steps_ns = int((window.steps["end_ns"] - window.steps["begin_ns"]).sum())
    open_paths = {phase.path for phase in run.open_phases}
    open_paths |= {path.rpartition("/")[0] for path in open_paths}
    scopes = Scope.STEP, Scope.OTHER_THREADS
    of_open_step = in_unfinished_steps(run, run.steps.array[:0])
    found = []
    for number, path in enumerate(run.paths):
        whole = run.phases.get(path, PhaseStatistics())
        keys = [(number, scope) for scope in scopes if (number, scope) in run.statistics]
        ended_ns = sum(_host_ns(run.statistics, key) - _host_ns(of_open_step, key) for key in keys)
        is_inside = bool(keys) and run.step_totals.count > 0
        in_window = bool(step_ns[number]) or is_inside
        found.append(
            LivePhase(
                path=path,
                is_open=path in open_paths,
                calls=whole.count,
                mean_ns=_mean(whole.host),
                p99_ns=whole.host.p99_ns if whole.host is not None and whole.count else None,
                per_step_ns=ended_ns / run.step_totals.count if is_inside else None,
                device_mean_ns=_mean(whole.device),
                window_calls=calls[number],
                window_calls_per_s=window.per_second(calls[number]),
                window_mean_ns=total_ns[number] / calls[number] if calls[number] else None,
                window_per_step_ns=window.per_step(step_ns[number]) if in_window else None,
                window_share=thread_ns[number] / steps_ns if thread_ns[number] else None,
                series_ns=tuple(series[number].tolist()) if in_window else (),
            )
        )
    return tuple(found)


def _host_ns(
    statistics: Mapping[tuple[int, Scope], PhaseStatistics], key: tuple[int, Scope]
) -> int:
    host = statistics.get(key, PhaseStatistics()).host
    return 0 if host is None else host.total_ns


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


def _metrics(run: Run) -> tuple[LiveMetric, ...]:
    found = []
    for number, name in enumerate(run.metric_names):
        values = run.metrics[run.metrics["name"] == number]
        if not len(values):
            continue
        last = values[-1]
        value, step = float(last["value"]), int(last["step"])
        found.append(
            LiveMetric(
                name=name,
                value=_finite(value),
                text=f"{value:.6g}",
                step=step if step >= 0 else None,
                age_ns=max(0, run.duration_ns - int(last["host_ns"])),
                series=tuple(map(_finite, values["value"][-SERIES:].tolist())),
            )
        )
    return tuple(found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _memory(run: Run) -> LiveMemory | None:
    memory = run.memory
    if memory is None:
        return None
    points = memory.points
    last = points[-1] if len(points) else None
    return LiveMemory(
        device=memory.device,
        step=None if last is None else int(last["step"]),
        allocated_bytes=None if last is None else int(last["allocated_bytes"]),
        reserved_bytes=None
        if last is None or last["reserved_bytes"] < 0
        else int(last["reserved_bytes"]),
        peak_bytes=memory.peak_bytes,
        out_of_memory=memory.out_of_memory_count,
        series_bytes=tuple(points["allocated_bytes"][-SERIES:].tolist()),
    )


def _modules(run: Run, window: _Window) -> tuple[LiveModule, ...]:
    row_of = {
        member: row for row, name in enumerate(run.modules) for member in run.modules.of_group(name)
    }
    rows = np.array([row_of.get(name, -1) for name in run.module_names], np.int64)
    places = window.places_of(run.module_spans["step"])
    passes = run.module_spans[places >= 0]
    # Modules may be timed in some of the steps only.
    steps = len(np.unique(places[places >= 0]))
    rows_of_passes = rows[passes["module"]]
    times_ns = passes["host_end_ns"] - passes["host_begin_ns"]

    def totals_ns(kind: ModulePass) -> list[float]:
        chosen = (passes["kind"] == kind) & (rows_of_passes >= 0)
        found: list[float] = np.bincount(
            rows_of_passes[chosen], times_ns[chosen], len(run.modules)
        ).tolist()
        return found

    forward_ns, backward_ns = totals_ns(ModulePass.FORWARD), totals_ns(ModulePass.BACKWARD)
    return tuple(
        LiveModule(
            name=times.name,
            modules=times.modules,
            calls=times.calls,
            forward_mean_ns=_mean(times.forward),
            backward_mean_ns=_mean(times.backward),
            window_forward_per_step_ns=forward_ns[row] / steps if steps else None,
            window_backward_per_step_ns=backward_ns[row] / steps if steps else None,
        )
        for row, times in enumerate(run.modules.values())
    )


def spread(values: Sequence[float | None]) -> float | None:
    """By which share the largest of some values is above the smallest; None if that is unknown."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or min(known) <= 0:
        return None
    return max(known) / min(known) - 1
