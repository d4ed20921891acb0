# SPDX-License-Identifier: Apache-2.0
"""The time budget: each step's time, entered twice, once for the host and once for the device.

Both sides of a step add up to its wall time, to the nanosecond. docs/savings.md explains the
columns and what events prove of the device's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import LATENCY_NS, CorrelationPoints
from pyinstrument_gpu.analysis.host_timeline import HostTimeline
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.core.arrays import distinct, groups
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.run import Run

DEVICE_COLUMNS = ("busy_ns", "data_wait_ns", "sync_wait_ns", "host_wait_ns", "unknown_ns")
_COLUMNS = ("host_ns", "blocked_ns", *DEVICE_COLUMNS)
TIME_BUDGET_DTYPE = np.dtype([(name, "<i8") for name in ("step", "path", *_COLUMNS)])
"""What one phase was in one step. `step` is the step's index, `path` indexes `Run.paths`, -1 is
outside all phases. `host_ns` is the host's own time in it, of which `blocked_ns` waiting, -1
unknown. The last five are the device's, all -1 where the device was not timed in that step."""

BUSY, _DATA_WAIT, _SYNC_WAIT, _HOST_WAIT, _UNKNOWN = range(len(DEVICE_COLUMNS))

EMPTY_NS = 10_000
"""The device time up to which a segment holds nothing but events."""
MIN_FOUND = 5
"""How often a segment has to be found empty."""
DATA_PHASES = ("data", "data start", "data end")
"""The names of the phases that are a wait for the loader."""


@dataclass(frozen=True)
class TimeBudgetEntry:
    """The time of a phase per step. The first two add up to the host's time, where they are known;
    the others to the device's, which is the same over all entries.

    Attributes:
        path: the phase, without those inside; without one it is what lies outside phases.
        host_ns: the host's own time, where its parts are not known.
        computing_ns, blocked_ns: these parts: at work, and waiting for the device.
        busy_ns: the device worked, on what the phase enqueued; or may have waited, see `doubt`.
        data_wait_ns, sync_wait_ns, host_wait_ns: it was idle because the host waited for data,
            because a sync had cost the host its lead, or because the host was late.
        unknown_ns: it was busy or idle: events can't tell.
    """

    path: str | None
    host_ns: float | None
    computing_ns: float | None
    blocked_ns: float | None
    busy_ns: float | None
    data_wait_ns: float | None
    sync_wait_ns: float | None
    host_wait_ns: float | None
    unknown_ns: float | None

    @property
    def time_ns(self) -> float:
        """The host's own time, in any case."""
        if self.host_ns is not None:
            return self.host_ns
        return (self.computing_ns or 0.0) + (self.blocked_ns or 0.0)


@dataclass(frozen=True)
class TimeBudget:
    """Means per step. Both sides add up to the step.

    Attributes:
        steps: over how many.
        doubt: what the stream may wait for where it looks busy.
        entries: by phase.
    """

    steps: int
    doubt: str | None
    entries: tuple[TimeBudgetEntry, ...]

    @property
    def total(self) -> TimeBudgetEntry:
        """The sum of the entries, unknown where one of them is."""
        columns = zip(*(astuple(entry)[1:] for entry in self.entries), strict=True)
        sums = [None if None in column else sum(column) for column in columns]
        total = TimeBudgetEntry(None, *sums)
        return total if total.computing_ns is not None else replace(total, host_ns=self.step_ns)

    @property
    def step_ns(self) -> float:
        """The mean time of these steps."""
        return sum(entry.time_ns for entry in self.entries)


@dataclass(frozen=True)
class TimeBudgetEntries:
    """The entries of a run by step and phase.

    Attributes:
        steps: the steps it is about, as rows of `Run.steps.array`: closed, and with all spans kept.
        entries: one for each step and phase that has any time (`TIME_BUDGET_DTYPE`), by step and
            path.
    """

    steps: NDArray[np.void]
    entries: NDArray[np.void]

    @property
    def is_timed(self) -> NDArray[np.bool_]:
        """True for entries of which the device's side is known."""
        known: NDArray[np.bool_] = self.entries["busy_ns"] >= 0
        return known

    def means(self) -> tuple[int, Mapping[int, TimeBudgetEntry]]:
        """The means per step by path, -1 outside of phases, and over how many steps: those of which
        most is known, so that both sides are of the same ones."""
        entries = self.entries
        if self.is_timed.any():
            entries = entries[self.is_timed]
        if (entries["blocked_ns"] >= 0).any():
            entries = entries[entries["blocked_ns"] >= 0]
        steps = len(distinct(entries["step"]))
        means = {}
        for path, places in groups(entries["path"]):
            host_ns, blocked_ns, *device_ns = (
                None if (times_ns < 0).any() else int(times_ns.sum()) / steps
                for times_ns in (entries[name][places] for name in _COLUMNS)
            )
            assert host_ns is not None
            computing_ns = None if blocked_ns is None else host_ns - blocked_ns
            unsplit_ns = host_ns if blocked_ns is None else None
            means[path] = TimeBudgetEntry(None, unsplit_ns, computing_ns, blocked_ns, *device_ns)
        return steps, means


def mean_time_budget(run: Run, found: TimeBudgetEntries, doubt: str | None) -> TimeBudget:
    """The means of a run's entries, each phase before those inside it."""
    steps, means = found.means()
    in_phases = in_tree_order(run.path_parents, (path for path in means if path >= 0))
    entries = [replace(means[path], path=run.paths[path]) for path in in_phases]
    outside = [means[-1]] if -1 in means else []
    return TimeBudget(steps, doubt, (*entries, *outside))


def time_budget(run: Run, timeline: HostTimeline, points: CorrelationPoints) -> TimeBudgetEntries:
    """Return the time budget. Costs some sorting: some seconds per million spans."""
    steps = timeline.steps
    step, path, column, times_ns = np.concatenate(
        [_host_side(timeline), _device_side(run, points, steps)], axis=1
    )
    keys, row = np.unique(step * (len(run.paths) + 1) + path + 1, return_inverse=True)
    sums_ns = np.bincount(
        row * len(_COLUMNS) + column, times_ns, minlength=len(keys) * len(_COLUMNS)
    ).reshape(len(keys), len(_COLUMNS))
    entries = np.zeros(len(keys), TIME_BUDGET_DTYPE)
    position, entries["path"] = np.divmod(keys, len(run.paths) + 1)
    entries["path"] -= 1
    entries["step"] = steps["index"][position]
    for name, of_rows_ns in zip(_COLUMNS, sums_ns.T, strict=True):
        entries[name] = of_rows_ns
    entries["host_ns"] += entries["blocked_ns"]
    is_watched = run.syncs.are_known(steps["begin_ns"], steps["end_ns"])
    entries["blocked_ns"][~is_watched[position] | run.syncs.is_as_if] = -1
    is_timed = are_timed(run, points, steps)[position]
    for name in DEVICE_COLUMNS:
        entries[name][~is_timed] = -1
    return TimeBudgetEntries(steps, entries[(entries["host_ns"] > 0) | is_timed])


def are_timed(run: Run, points: CorrelationPoints, steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether the device was timed in each step, on the stream of the points."""
    timed = (run.spans["stream"] == points.stream) & (run.span_device_ns >= 0)
    timed &= run.spans["thread"] == points.thread
    return np.isin(steps["index"], distinct(run.spans["step"][timed])) & (points.stream >= 0)


@dataclass(frozen=True)
class DevicePieces:
    """The work of the stream, as pieces without gaps between the first point and the last.

    Attributes:
        edges_ns: where they begin, and where the last one ends.
        state: of each piece, the number of its column in `DEVICE_COLUMNS`.
        path: of each piece, the phase in which the host enqueued it.
    """

    edges_ns: NDArray[np.int64]
    state: NDArray[np.int64]
    path: NDArray[np.int64]


def device_pieces(run: Run, points: CorrelationPoints) -> DevicePieces:
    """The segments of a run's stream, each cut where the host had left it: before that anything may
    have been, and behind it the device was busy."""
    if len(points) < 2:
        none = np.empty(0, np.int64)
        return DevicePieces(none, none, none)
    begins_ns, ends_ns = points.device_ns[:-1], points.device_ns[1:]
    error_ns = np.maximum(points.uncertainty_ns[:-1], points.uncertainty_ns[1:])
    enqueued_ns = np.clip(points.host_ns[1:] + error_ns + LATENCY_NS, begins_ns, ends_ns)
    is_data, is_empty = empty_segments(run, points)
    # Since when the device has not had a backlog, and whether the host has been blocked since.
    places = np.arange(len(points))
    is_sync = points.site >= 0
    had_backlog = ~is_sync & (
        points.device_ns > points.host_ns + points.uncertainty_ns + LATENCY_NS + EMPTY_NS
    )
    waited = is_sync & (points.resume_ns - points.host_ns > LATENCY_NS + EMPTY_NS)
    last_backlog = np.maximum.accumulate(np.where(had_backlog, places, -1))
    last_wait = np.maximum.accumulate(np.where(waited, places, -1))
    lost_lead = (last_wait > last_backlog)[:-1]
    open_state = np.select(
        [is_empty & is_data, is_empty & lost_lead, is_empty],
        [_DATA_WAIT, _SYNC_WAIT, _HOST_WAIT],
        _UNKNOWN,
    )
    edges_ns = np.append(np.column_stack([begins_ns, enqueued_ns]).ravel(), ends_ns[-1])
    state = np.column_stack([open_state, np.full(len(open_state), BUSY)]).ravel()
    return DevicePieces(edges_ns, state, np.repeat(points.path[:-1], 2))


def are_data(run: Run) -> NDArray[np.bool_]:
    return run.are_named(DATA_PHASES)


def empty_segments(
    run: Run, points: CorrelationPoints
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each segment whether it is a phase `data`'s, and whether it enqueues nothing."""
    is_data = np.append(are_data(run), False)[points.path[:-1]]
    kinds = points.segment_kind
    stream_ns = np.diff(points.device_ns)
    # The work of these is known exactly.
    measured = points.device_ns[:-1] - points.uncertainty_ns[:-1] >= points.host_ns[1:]
    measured &= points.site[1:] < 0
    count = int(kinds.max(initial=-1)) + 1
    had_work = np.bincount(kinds[measured & (stream_ns > EMPTY_NS)], minlength=count) > 0
    found_empty = np.bincount(kinds[measured & (stream_ns <= EMPTY_NS)], minlength=count)
    is_empty = ~had_work[kinds] & (is_data | (found_empty >= MIN_FOUND)[kinds])
    return is_data, is_empty


# Each side is rows of pieces of time: the step's position, the path, the column, the length. The
# host's column is `host_ns` where it computes alone, until the sums are complete.


def _host_side(timeline: HostTimeline) -> NDArray[np.int64]:
    waits_ns = timeline.waits_ns
    step, begins_ns, times_ns = _pieces(timeline.steps, timeline.host_ns, *waits_ns)
    is_blocked = interval_at(*waits_ns, begins_ns) >= 0
    return np.stack([step, timeline.path_at(begins_ns), is_blocked, times_ns])


def _device_side(run: Run, points: CorrelationPoints, steps: NDArray[np.void]) -> NDArray[np.int64]:
    device = device_pieces(run, points)
    step, begins_ns, times_ns = _pieces(steps, device.edges_ns)
    # Before the first point and behind the last nothing is known.
    place = np.searchsorted(device.edges_ns, begins_ns, side="right")
    state = np.concatenate([[_UNKNOWN], device.state, [_UNKNOWN]])[place]
    path = np.concatenate([[-1], device.path, [-1]])[place]
    return np.stack([step, path, state + _COLUMNS.index(DEVICE_COLUMNS[0]), times_ns])


def _pieces(
    steps: NDArray[np.void], *edges_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The time of steps, cut at all edges: the position of the step, begin and length of each."""
    # Each of them is sorted, which this sort makes use of.
    cuts_ns = np.sort(
        np.concatenate([steps["begin_ns"], steps["end_ns"], *edges_ns]), kind="stable"
    )
    step = interval_at(steps["begin_ns"], steps["end_ns"], cuts_ns[:-1])
    inside = (step >= 0) & (np.diff(cuts_ns) > 0)
    return step[inside], cuts_ns[:-1][inside], np.diff(cuts_ns)[inside]
