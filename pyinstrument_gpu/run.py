# SPDX-License-Identifier: Apache-2.0
"""The run: all that one process recorded, as plain data."""

from __future__ import annotations

import copy
import enum
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyinstrument_gpu.device_clock import DeviceClock
from pyinstrument_gpu.statistics import PhaseStatistics, Scope, Statistic, fold_spans
from pyinstrument_gpu.syncs.records import Syncs

__all__ = [
    "METRIC_DTYPE",
    "SPAN_DTYPE",
    "STEP_DTYPE",
    "DeviceClock",
    "DeviceTiming",
    "OpenPhase",
    "Run",
    "Scope",
    "SpanFlag",
    "Step",
    "StepTotals",
    "Steps",
    "Stream",
    "Thread",
    "fold_steps",
    "has_device_times",
    "join_paths",
    "named_streams",
    "span_scopes",
]

SPAN_DTYPE = np.dtype(
    [
        ("phase", "<u4"),
        ("path", "<u4"),
        ("step", "<i8"),
        ("depth", "<u2"),
        ("thread", "<u4"),
        ("device", "<i2"),
        ("stream", "<i4"),
        ("host_begin_ns", "<i8"),
        ("host_end_ns", "<i8"),
        ("device_begin_ns", "<i8"),
        ("device_end_ns", "<i8"),
        ("blocked_ns", "<i8"),
        ("flags", "<u4"),
    ]
)
"""One span. `phase` indexes `Run.names`, `path` `Run.paths`, `thread` `Run.threads`, `stream`
`Run.streams`; `device` is the ordinal of that stream's device. -1 is missing. Times are nanoseconds
since the run began, host and device on one axis; exact stream times are in `Run.span_device_ns`."""

STEP_DTYPE = np.dtype(
    [
        ("index", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("samples", "<f8"),
        ("items", "<i8"),
        ("complete", "?"),
        ("thread", "<u4"),
    ]
)
"""One step, as in `Step`; unknown samples are NaN."""

METRIC_DTYPE = np.dtype(
    [
        ("update", "<u8"),
        ("step", "<i8"),
        ("host_ns", "<i8"),
        ("name", "<u4"),
        ("value", "<f8"),
    ]
)
"""One value of a reading of metrics. `update` is the number of the newest update in it, `step` the
index of that update's step (-1 none, or not known), `host_ns` when it was read, `name` indexes
`Run.metric_names`."""


_LAST_DEFAULT_HANDLE = 2


class SpanFlag(enum.IntFlag):
    """Bits of a span's `flags`."""

    STEP_THREAD = 1
    """The span began on the thread that opened its step."""
    DEVICE = 2
    """The span was timed on the device too, whether or not its time became known."""
    DEVICE_UNFINISHED = 4
    """The device had not completed the span's work when that was last looked at."""


@dataclass(frozen=True)
class Thread:
    """A thread that ended a span or a step.

    Attributes:
        native_id: the operating system's number of the thread.
        name: its name when it was first seen.
    """

    native_id: int
    name: str


@dataclass(frozen=True)
class Stream:
    """A stream of a device.

    Attributes:
        device: the device's ordinal.
        handle: the driver's handle; 0, 1 and 2 mean the default stream.
        name: "default stream", or "stream 1", "stream 2" and so on for each device.
    """

    device: int
    handle: int
    name: str


def named_streams(places: Iterable[tuple[int, int]]) -> tuple[Stream, ...]:
    """Streams given by device and handle, with their names: numbered in order of appearance."""
    numbers: dict[int, int] = {}
    streams = []
    for device, handle in places:
        name = "default stream"
        if handle > _LAST_DEFAULT_HANDLE:
            numbers[device] = numbers.get(device, 0) + 1
            name = f"stream {numbers[device]}"
        streams.append(Stream(device, handle, name))
    return tuple(streams)


@dataclass(frozen=True)
class DeviceTiming:
    """How the device was timed.

    Attributes:
        every: it was timed in every step that this number divides; the newest value.
        records: number of events that recording threads recorded.
        record_ns: total host time of the driver calls they made for that.
    """

    every: int
    records: int
    record_ns: int


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        index: its number, counted from the start of the run.
        begin_ns: begin, in ns since the run began.
        end_ns: end; -1 when the step was still open.
        samples: number of samples; None when unknown.
        items: number of items taken from the loader.
        complete: whether the step ran to its end, not left by an exception or break.
        thread: the thread that opened the step, as an index into `Run.threads`.
    """

    index: int
    begin_ns: int
    end_ns: int
    samples: float | None
    items: int
    complete: bool
    thread: int

    @property
    def duration_ns(self) -> int | None:
        """End minus begin; None when the step was still open."""
        return None if self.end_ns < 0 else self.end_ns - self.begin_ns


class Steps(Sequence[Step]):
    """The steps of a run in order, as a sequence of `Step` over one numpy array.

    Attributes:
        array: the steps as columns (`STEP_DTYPE`), ascending by index.
    """

    def __init__(self, array: NDArray[np.void] | None = None) -> None:
        self.array = np.empty(0, STEP_DTYPE) if array is None else array

    @classmethod
    def with_open(cls, closed: NDArray[np.void], open_step: Step | None) -> Steps:
        """Closed steps as an array of `STEP_DTYPE`, and behind them the one that is open."""
        if open_step is None:
            return cls(closed)
        row = (
            open_step.index,
            open_step.begin_ns,
            open_step.end_ns,
            math.nan if open_step.samples is None else open_step.samples,
            open_step.items,
            open_step.complete,
            open_step.thread,
        )
        return cls(np.append(closed, np.array([row], dtype=STEP_DTYPE)))

    @property
    def closed(self) -> NDArray[np.void]:
        """The part of `array` without a step that was still open."""
        return self.array[self.array["end_ns"] >= 0]

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, position: int) -> Step: ...
    @overload
    def __getitem__(self, position: slice) -> Steps: ...
    def __getitem__(self, position: int | slice) -> Step | Steps:
        if isinstance(position, slice):
            return Steps(self.array[position])
        index, begin_ns, end_ns, samples, items, complete, thread = self.array[position].item()
        known_samples = None if math.isnan(samples) else samples
        return Step(index, begin_ns, end_ns, known_samples, items, complete, thread)

    def __iter__(self) -> Iterator[Step]:
        return (self[position] for position in range(len(self)))

    def by_index(self, index: int) -> Step:
        """The step with this index. Its position differs where the oldest steps were dropped.

        Raises:
            KeyError: there is no such step; the message names the range there is.
        """
        position = int(np.searchsorted(self.array["index"], index))
        if position < len(self) and self.array["index"][position] == index:
            return self[position]
        if not len(self):
            raise KeyError(f"no step {index}: the run holds no steps")
        first, last = self.array["index"][[0, -1]]
        raise KeyError(f"no step {index}: the run holds steps {first} to {last}")

    def __repr__(self) -> str:
        return f"<{len(self)} steps>"


@dataclass(frozen=True)
class OpenPhase:
    """A phase that had begun and not ended when the run was last written.

    Attributes:
        path: its path, as in `Run.paths`.
        thread: its thread, as an index into `Run.threads`.
        begin_ns: begin, in ns since the run began.
        step: index of the step it belongs to; -1 none.
        depth: number of phases around it.
    """

    path: str
    thread: int
    begin_ns: int
    step: int
    depth: int


@dataclass(frozen=True)
class StepTotals:
    """Sums over all closed steps of a run, also of those whose history was not kept.

    Attributes:
        count: number of steps.
        complete: number of them that ran to their end.
        items: number of items taken from the loader.
        sampled: number of steps whose samples are known.
        sampled_ns: total duration of those.
        samples: total samples of those.
        duration: the durations of the steps; `duration.count` is 0 when there was no step.
    """

    count: int
    complete: int
    items: int
    sampled: int
    sampled_ns: int
    samples: float
    duration: Statistic

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second of step time; None when there was none."""
        total_ns = self.duration.total_ns
        return self.duration.count / total_ns * 1e9 if total_ns else None

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of time in steps whose samples are known; None when there was none."""
        return self.samples / self.sampled_ns * 1e9 if self.sampled_ns else None

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(
            count=self.count + other.count,
            complete=self.complete + other.complete,
            items=self.items + other.items,
            sampled=self.sampled + other.sampled,
            sampled_ns=self.sampled_ns + other.sampled_ns,
            samples=self.samples + other.samples,
            duration=Statistic.merge([self.duration, other.duration]),
        )


def fold_steps(closed: NDArray[np.void]) -> StepTotals:
    """The totals of closed steps, an array of `STEP_DTYPE`."""
    durations_ns = closed["end_ns"] - closed["begin_ns"]
    sampled = ~np.isnan(closed["samples"])
    return StepTotals(
        count=len(closed),
        complete=int(np.count_nonzero(closed["complete"])),
        items=int(closed["items"].sum()),
        sampled=int(np.count_nonzero(sampled)),
        sampled_ns=Statistic.of(durations_ns[sampled]).total_ns,
        samples=float(closed["samples"][sampled].sum()),
        duration=Statistic.of(durations_ns),
    )


def span_scopes(spans: NDArray[np.void]) -> NDArray[np.int64]:
    """The `Scope` of each span of an array of `SPAN_DTYPE`."""
    on_step_thread = (spans["flags"] & SpanFlag.STEP_THREAD) != 0
    inside = np.where(on_step_thread, Scope.STEP, Scope.OTHER_THREADS)
    return np.where(spans["step"] < 0, Scope.OUTSIDE, inside)


def has_device_times(spans: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether it is known when each began and ended on its device, on the run's axis."""
    begin_ns, end_ns = spans["device_begin_ns"], spans["device_end_ns"]
    known: NDArray[np.bool_] = (begin_ns >= 0) & (end_ns >= begin_ns)
    return known


def join_paths(
    names: Sequence[str], parents: NDArray[np.int64], last_names: NDArray[np.uint32]
) -> tuple[str, ...]:
    """The texts of paths, as `Run.paths` describes them; arguments as the attributes of `Run`."""
    escaped = [name.replace("%", "%25").replace("/", "%2F") for name in names]
    paths: list[str] = []
    for parent, name in zip(parents.tolist(), last_names.tolist(), strict=True):
        paths.append(escaped[name] if parent < 0 else f"{paths[parent]}/{escaped[name]}")
    return tuple(paths)


class Run:
    """All that one process recorded. Plain data: it needs numpy and no native module.

    `spans` and `steps` are the history, which is bounded: the oldest may have been dropped
    (`dropped` counts them by cause). Statistics cover the whole run.

    Attributes:
        names: the phase names.
        path_parents: for each path the path around it, or -1.
        path_names: for each path its last name, as an index into `names`.
        threads: the threads that took part.
        streams: the device streams that took part.
        environment: where the run was recorded: host, rank, versions, command line, start, ...
        dropped: what was not kept, counted by cause.
        spans: the spans (`SPAN_DTYPE`); per thread in the order in which they ended.
        span_self_ns: for each span its host time without nested phases, -1 unknown.
        span_device_ns: for each span its stream time, by the device's own clock and so exact; -1
            unknown. It is known of spans too whose `device_begin_ns` is not, for want of a point of
            that clock on the run's axis.
        span_device_clock_ns: for each span with a stream time its begin by the device's own clock.
        device_clocks: the clocks of the devices as far as they are known, by device.
        device_timing: how the device was timed; None when it never was.
        pending_device_work: by path the number of spans whose device work had not finished.
        steps: the steps.
        metric_names: the names of the metrics that were read.
        metrics: their values (`METRIC_DTYPE`), in the order in which they were read.
        step_totals: sums over all closed steps.
        open_phases: the phases that had not ended.
        open_step: the step that had not ended, also the last of `steps`; or None.
        complete: whether the recording was stopped. If not, the process died or was still running.
        notes: plain sentences on what is missing or damaged.
        duration_ns: time from the start of the run to its end or last sign of life.
        phases_recorded: number of spans that ended in the whole run, also those whose history was
            not kept.
        harvester_cpu_ns: CPU time that the recorder's own thread used.
        anchor: the last reading of the machine's clocks beside the run's own;
            `environment["anchor"]` is the first.
        syncs: the places where the program made the host wait for a device.
    """

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        path_parents: ArrayLike = (),
        path_names: ArrayLike = (),
        threads: Sequence[Thread] = (),
        streams: Sequence[Stream] = (),
        environment: Mapping[str, Any] | None = None,
        dropped: Mapping[str, int] | None = None,
        spans: NDArray[np.void] | None = None,
        span_self_ns: NDArray[np.int64] | None = None,
        span_device_ns: NDArray[np.int64] | None = None,
        span_device_clock_ns: NDArray[np.int64] | None = None,
        device_clocks: Sequence[DeviceClock] | None = None,
        device_timing: DeviceTiming | None = None,
        pending_device_work: Mapping[str, int] | None = None,
        steps: Steps | None = None,
        metric_names: Sequence[str] = (),
        metrics: NDArray[np.void] | None = None,
        step_totals: StepTotals | None = None,
        statistics: Mapping[tuple[int, Scope], PhaseStatistics] | None = None,
        open_phases: Sequence[OpenPhase] = (),
        open_step: Step | None = None,
        complete: bool = True,
        notes: Sequence[str] = (),
        duration_ns: int = 0,
        phases_recorded: int | None = None,
        harvester_cpu_ns: int = 0,
        anchor: Mapping[str, int] | None = None,
        syncs: Syncs | None = None,
    ) -> None:
        """Make a run by hand.

        Args:
            span_device_ns, span_device_clock_ns, device_clocks: from the device times of `spans`
                when not given, as if devices shared the run's clock.
            statistics: by path and scope; computed from `spans` when not given, as is
                `step_totals` from `steps`.
            phases_recorded: as many as `statistics` count when not given.

        The other arguments are as the attributes.
        """
        self.names = tuple(names)
        self.path_parents = np.asarray(path_parents, dtype=np.int64)
        self.path_names = np.asarray(path_names, dtype=np.uint32)
        self.threads = tuple(threads)
        self.streams = tuple(streams)
        self.environment = dict(environment or {})
        self.dropped = dict(dropped or {})
        self.spans = np.empty(0, SPAN_DTYPE) if spans is None else spans
        self.span_self_ns = (
            np.full(len(self.spans), -1, dtype=np.int64) if span_self_ns is None else span_self_ns
        )
        timed = has_device_times(self.spans)
        begin_ns, end_ns = self.spans["device_begin_ns"], self.spans["device_end_ns"]
        if span_device_ns is None:
            span_device_ns = np.where(timed, end_ns - begin_ns, -1)
        if span_device_clock_ns is None:
            span_device_clock_ns = np.where(span_device_ns >= 0, begin_ns, -1)
        if device_clocks is None:
            devices = np.unique(self.spans["device"][timed]).tolist()
            device_clocks = [DeviceClock.same_as_run(device) for device in devices if device >= 0]
        self.span_device_ns = span_device_ns
        self.span_device_clock_ns = span_device_clock_ns
        self.device_clocks = tuple(device_clocks)
        self.device_timing = device_timing
        self.pending_device_work = dict(pending_device_work or {})
        self.steps = Steps() if steps is None else steps
        self.metric_names = tuple(metric_names)
        self.metrics = np.empty(0, METRIC_DTYPE) if metrics is None else metrics
        self.step_totals = fold_steps(self.steps.closed) if step_totals is None else step_totals
        if statistics is None:
            statistics = fold_spans(
                self.spans["path"],
                span_scopes(self.spans),
                self.spans["host_end_ns"] - self.spans["host_begin_ns"],
                self.span_self_ns,
                self.span_device_ns,
            )
        self._statistics = dict(sorted(statistics.items()))
        self.open_phases = tuple(open_phases)
        self.open_step = open_step
        self.complete = complete
        self.notes = tuple(notes)
        self.duration_ns = duration_ns
        if phases_recorded is None:
            phases_recorded = sum(phase.count for phase in self._statistics.values())
        self.phases_recorded = phases_recorded
        self.harvester_cpu_ns = harvester_cpu_ns
        self.anchor = dict(anchor or {})
        self.syncs = Syncs() if syncs is None else syncs

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run file.

        A file that was cut off or damaged gives what stands before the damage, and `notes` say what
        is missing.

        Raises:
            OSError: the file cannot be opened or read.
            RunFileDamagedError: it is not a run file, or nothing true can be read from it.
            RunFileVersionError: its format is newer than this version of the package.
        """
        from pyinstrument_gpu import runfile

        return runfile.load(path)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Run:
        """Read the bytes of a run file; errors as in `load`."""
        from pyinstrument_gpu import runfile

        return runfile.decode(data)

    @classmethod
    def empty(cls, reason: str) -> Run:
        """The run of a recording that recorded nothing; `reason` becomes its note."""
        return cls(notes=(reason,))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the run as a run file, which `load` reads back equal.

        The file appears whole or not at all.

        Raises:
            RunPathError: the file exists and `overwrite` is false, or it cannot be written.
        """
        from pyinstrument_gpu import runfile

        runfile.save(self, path, overwrite=overwrite)

    def with_history_of(self, earlier: Run) -> Run:
        """This run with the spans, closed steps and metrics of another copy of it.

        For a recording whose file failed: its history stands in the file, up to the failure, and
        all else is known from memory.

        Args:
            earlier: the same run as it was written before; its names, paths and streams are the
                first of this one's.
        """
        run = copy.copy(self)
        run.spans = earlier.spans.copy()
        # Whether device work finished after the file failed is not known.
        run.spans["flags"] &= ~np.uint32(SpanFlag.DEVICE_UNFINISHED)
        run.span_self_ns = earlier.span_self_ns
        run.span_device_ns = earlier.span_device_ns
        run.span_device_clock_ns = earlier.span_device_clock_ns
        run.steps = Steps.with_open(earlier.steps.closed, self.open_step)
        run.metric_names, run.metrics = earlier.metric_names, earlier.metrics
        return run

    @property
    def overhead(self) -> dict[str, Any]:
        """What the recorder costs, as it measured itself; see `environment`."""
        return dict(self.environment.get("overhead", {}))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The phase paths: names from the outermost in, joined by "/".

        In a name "/" stands as %2F and "%" as %25.
        """
        return join_paths(self.names, self.path_parents, self.path_names)

    @cached_property
    def phases(self) -> Mapping[str, PhaseStatistics]:
        """The statistics of each path over all scopes, in order of first appearance."""
        by_path: dict[int, list[PhaseStatistics]] = {}
        for (path, _), phase in self._statistics.items():
            by_path.setdefault(path, []).append(phase)
        return {self.paths[path]: PhaseStatistics.merge(parts) for path, parts in by_path.items()}

    def phases_in(self, scope: Scope) -> Mapping[str, PhaseStatistics]:
        """The statistics of each path in one scope only, in the same order as `phases`."""
        return {
            self.paths[path]: phase
            for (path, where), phase in self._statistics.items()
            if where == scope
        }

    @property
    def statistics(self) -> Mapping[tuple[int, Scope], PhaseStatistics]:
        """The statistics by path (an index into `paths`) and scope, from which `phases` is made."""
        return self._statistics

    def report(
        self, *, step: int | None = None, width: int | None = None, color: bool | None = None
    ) -> str:
        """The run as a table for the terminal.

        Args:
            step: show this step alone, by its index; the whole run when None.
            width: columns; as wide as the terminal when None.
            color: whether to use colours; as the terminal allows when None.

        Raises:
            KeyError: there is no such step.
        """
        from pyinstrument_gpu.report.terminal import report

        return report(self, step=step, width=width, color=color)

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> None:
        """Write the run in another format.

        Formats and suffixes are `csv` (.csv), `perfetto` (.json), `parquet` (.parquet; a folder,
        written `name/`, is `parquet-folder`), `nsys` (.nsys-rep), `nvtxt` (.nvtxt), `nsys-sqlite`
        (.sqlite) and, by name only, `tensorboard` (a log directory).
        `pyinstrument_gpu.export.export` writes several runs at once, the ranks of one job.

        Args:
            path: the file or folder to write. An existing file is replaced when the new one is
                whole, but never a run file.
            format: name of the format; by the suffix of `path` when None.
            options: options of the format: `summary=True` for CSV and Parquet, `merge_into=report`
                for `nsys`.

        Raises:
            ExportError: there is no such format, it cannot hold this run, or the file cannot be
                written.
            MissingDependencyError: the format needs a package or program that is not installed.
            TypeError: the format has no such option.
        """
        from pyinstrument_gpu.export import export

        export([self], path, format, **options)

    def __repr__(self) -> str:
        return (
            f"<Run of {self.duration_ns / 1e9:.3f} s: {len(self.spans)} spans, "
            f"{len(self.steps)} steps, "
            f"{len(self.phases)} phases{'' if self.complete else ', not complete'}>"
        )
