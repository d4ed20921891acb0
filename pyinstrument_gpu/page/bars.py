# SPDX-License-Identifier: Apache-2.0
"""The bars of the timeline: what each thread and stream of a run did in a stretch of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.palette import MODULE_COLORS, STEP_COLOR, SYNC_COLOR, color_of
from pyinstrument_gpu.model.distinct import distinct
from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SPAN_DTYPE, has_device_times

STEP, PHASE, MODULE, WAIT = range(4)


@dataclass(frozen=True)
class Label:
    """What bars are called.

    Attributes:
        name: in the bar.
        path: in full.
        kind: `STEP`, `PHASE`, `MODULE` or `WAIT`.
        color: 0xAARRGGBB, that of the exports.
    """

    name: str
    path: str
    kind: int
    color: int


@dataclass
class Labels:
    """The labels of a window, each once."""

    found: dict[tuple[int, int, int], int] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)

    def of(
        self, run: RunData, which: int, kind: int, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The label of each bar, by what its kind numbers: paths, modules and passes, sites."""
        known = distinct(numbers)
        places = []
        for number in known.tolist():
            key = (which, kind, number)
            if key not in self.found:
                self.found[key] = len(self.labels)
                self.labels.append(_label(run, kind, number))
            places.append(self.found[key])
        return np.array(places, np.int64)[np.searchsorted(known, numbers)]


def _label(run: RunData, kind: int, number: int) -> Label:
    if kind == STEP:
        return Label(f"step {number}", f"step {number}", kind, STEP_COLOR)
    if kind == PHASE:
        name = run.names[run.path_names[number]]
        return Label(name, run.paths[number], kind, color_of(name))
    if kind == MODULE:
        module, how = divmod(number, len(ModulePass))
        name, passed = run.module_names[module], ModulePass(how)
        path = name if passed is ModulePass.FORWARD else f"{name} ({passed.name.lower()})"
        return Label(name, path, kind, MODULE_COLORS[passed])
    site = run.syncs.sites[number]
    text = f"{site.kind.label} at {run.name_of_line(site.program)}"
    return Label(text, text, kind, SYNC_COLOR)


class Bars(NamedTuple):
    """Bars of one thread or stream, as columns; `order` is higher for what is further inside."""

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    label: NDArray[np.int64]
    step: NDArray[np.int64]
    blocked_ns: NDArray[np.int64]
    pair: NDArray[np.int64]
    depth: NDArray[np.int64]
    kind: NDArray[np.int64]

    def some(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Bars:
        return Bars(*(column[rows] for column in self))


class _Ranges(NamedTuple):
    """Begins and ends of some records, and where these stand if not one behind the other."""

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    places: NDArray[np.intp] | None = None

    def within(self, begin_ns: int, end_ns: int) -> NDArray[np.intp]:
        """The places of those that overlap a window, or begin with it and have no length."""
        inside = (self.begin_ns < end_ns) & (self.end_ns > begin_ns)
        inside |= (self.begin_ns == begin_ns) & (self.end_ns == begin_ns)
        found = np.flatnonzero(inside)
        return found if self.places is None else self.places[found]


class RunBars:
    """The bars of a run. Times are read once, as a column each, for all windows."""

    def __init__(self, run: RunData, number: int) -> None:
        self.run = run
        self._number = number
        steps, waits = run.steps.array, run.syncs.events
        ends_ns = np.where(steps["end_ns"] < 0, run.duration_ns, steps["end_ns"])
        wait_ends_ns = waits["begin_ns"] + np.maximum(waits["duration_ns"], 0)
        self._opened = _open_phases(run)
        self._spans = _host_ranges(run.spans)
        self._device_spans = _device_ranges(run.spans)
        self._modules = _host_ranges(run.module_spans)
        self._device_modules = _device_ranges(run.module_spans)
        self._steps = _Ranges(steps["begin_ns"], np.maximum(ends_ns, steps["begin_ns"]))
        self._waits = _Ranges(waits["begin_ns"], wait_ends_ns)
        self._open_ranges = _host_ranges(self._opened)
        self._step_on_device = run.spans["step"][self._device_spans.places]

    def device_is_done_ns(self, step: int) -> int:
        """When the device had done what phases of the step enqueued; -1 if that is not known."""
        ends_ns = self._device_spans.end_ns[self._step_on_device == step]
        return int(ends_ns.max(initial=-1))

    def tracks(
        self, begin_ns: int, end_ns: int, labels: Labels
    ) -> Iterator[tuple[str, bool, Bars]]:
        """What happened in a window: for each thread, the main one first, and then each stream its
        name, whether it is a stream, and its bars by their begins."""
        yield from self._threads(begin_ns, end_ns, labels)
        yield from self._streams(begin_ns, end_ns, labels)

    def _threads(
        self, begin_ns: int, end_ns: int, labels: Labels
    ) -> Iterator[tuple[str, bool, Bars]]:
        run, steps, waits = self.run, self.run.steps.array, self.run.syncs.events
        spans = self._spans.within(begin_ns, end_ns)
        opened = self._open_ranges.within(begin_ns, end_ns)
        modules = self._modules.within(begin_ns, end_ns)
        in_steps = self._steps.within(begin_ns, end_ns)
        in_waits = self._waits.within(begin_ns, end_ns)
        found = [
            (run.spans, spans),
            (self._opened, opened),
            (run.module_spans, modules),
            (steps, in_steps),
            (waits, in_waits),
        ]
        threads = np.concatenate([records["thread"][places] for records, places in found])
        main = run.environment.get("pid")  # on Linux also the number of its main thread
        order = distinct(threads).tolist()
        order.sort(key=lambda thread: run.threads[thread].native_id != main)
        for thread in order:
            # Of records with the same times the one that ended last is the outer one.
            own = [places[records["thread"][places] == thread][::-1] for records, places in found]
            parts = [
                self._bars(
                    STEP,
                    (self._steps.begin_ns[own[3]], self._steps.end_ns[own[3]]),
                    steps["index"][own[3]],
                    steps["index"][own[3]],
                    labels,
                ),
                self._phases(self._opened[own[1]], np.full(len(own[1]), -1), "host", labels),
                self._phases(run.spans[own[0]], own[0], "host", labels),
                self._passes(run.module_spans[own[2]], "host", labels),
                self._bars(
                    WAIT,
                    (self._waits.begin_ns[own[4]], self._waits.end_ns[own[4]]),
                    waits["site"][own[4]],
                    waits["step"][own[4]],
                    labels,
                    blocked_ns=waits["duration_ns"][own[4]],
                ),
            ]
            name = run.threads[thread].name or f"thread {run.threads[thread].native_id}"
            yield name, False, _by_begin(parts)

    def _streams(
        self, begin_ns: int, end_ns: int, labels: Labels
    ) -> Iterator[tuple[str, bool, Bars]]:
        run = self.run
        places = self._device_spans.within(begin_ns, end_ns)[::-1]
        module_places = self._device_modules.within(begin_ns, end_ns)[::-1]
        spans, modules = run.spans[places], run.module_spans[module_places]
        devices = np.array([*(stream.device for stream in run.streams), -1], np.int64)
        where = _place(spans["device"], spans["stream"])
        module_where = _place(devices[np.maximum(modules["stream"], -1)], modules["stream"])
        for place in distinct(np.concatenate([where, module_where])).tolist():
            own = where == place
            parts = [
                self._phases(spans[own], places[own], "device", labels),
                self._passes(modules[module_where == place], "device", labels),
            ]
            stream = int(np.int64(place).astype(np.int32))
            name = run.streams[stream].name if stream >= 0 else ""
            yield f"GPU {place >> 32} {name}".rstrip(), True, _by_begin(parts)

    def _phases(
        self, rows: NDArray[np.void], places: NDArray[np.intp], side: str, labels: Labels
    ) -> Bars:
        return self._bars(
            PHASE,
            (rows[f"{side}_begin_ns"], rows[f"{side}_end_ns"]),
            rows["path"],
            rows["step"],
            labels,
            blocked_ns=rows["blocked_ns"] if side == "host" else None,
            pair=np.where(has_device_times(rows), places, -1),
            depth=rows["depth"],
        )

    def _passes(self, rows: NDArray[np.void], side: str, labels: Labels) -> Bars:
        numbers = rows["module"].astype(np.int64) * len(ModulePass) + rows["kind"]
        times_ns = rows[f"{side}_begin_ns"], rows[f"{side}_end_ns"]
        return self._bars(MODULE, times_ns, numbers, rows["step"], labels)

    def _bars(
        self,
        kind: int,
        times_ns: tuple[NDArray[np.int64], NDArray[np.int64]],
        numbers: NDArray[np.int64],
        step: NDArray[np.int64],
        labels: Labels,
        *,
        blocked_ns: NDArray[np.int64] | None = None,
        pair: NDArray[np.int64] | None = None,
        depth: NDArray[np.int64] | None = None,
    ) -> Bars:
        none = np.full(len(step), -1)
        return Bars(
            *times_ns,
            labels.of(self.run, self._number, kind, numbers.astype(np.int64)),
            step,
            none if blocked_ns is None else blocked_ns,
            none if pair is None else pair,
            none if depth is None else depth.astype(np.int64),
            np.full(len(step), kind),
        )


def _host_ranges(records: NDArray[np.void]) -> _Ranges:
    times_ns = (np.ascontiguousarray(records[f"host_{end}_ns"]) for end in ("begin", "end"))
    return _Ranges(*times_ns)


def _device_ranges(records: NDArray[np.void]) -> _Ranges:
    timed = np.flatnonzero(has_device_times(records))
    return _Ranges(records["device_begin_ns"][timed], records["device_end_ns"][timed], timed)


def _place(device: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for a stream of a device."""
    place: NDArray[np.int64] = device.astype(np.int64) << 32 | stream.astype(np.uint32)
    return place


def _open_phases(run: RunData) -> NDArray[np.void]:
    """The phases that had not ended, as if they had when the run did."""
    rows = np.zeros(len(run.open_phases), SPAN_DTYPE)
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        rows[column] = -1
    opened = sorted(run.open_phases, key=lambda phase: phase.depth)
    rows["path"] = [run.paths.index(phase.path) for phase in opened]
    for column in ("step", "depth", "thread"):
        rows[column] = [getattr(phase, column) for phase in opened]
    rows["host_begin_ns"] = [phase.begin_ns for phase in opened]
    rows["host_end_ns"] = np.maximum(rows["host_begin_ns"], run.duration_ns)
    return rows


def _by_begin(parts: Sequence[Bars]) -> Bars:
    """All bars by their begins; of those that begin together the longest first, and of equal ones
    the step, its phases, their modules, and then waits."""
    joined = Bars(*map(np.concatenate, zip(*parts, strict=True)))
    return joined.some(np.lexsort((joined.kind, -joined.end_ns, joined.begin_ns)))


def rows_of(bars: Bars) -> NDArray[np.int64]:
    """The row of each bar: the first that is free when it begins, so what nests is drawn nested.

    A phase without length that begins together with one that is not around it lies on that one's
    row: devices have a coarse clock, so this is common there.
    """
    rows = np.empty(len(bars.begin_ns), np.int64)
    ends_ns: list[int] = []
    occupants: list[tuple[int, int]] = []
    columns = (bars.begin_ns, bars.end_ns, bars.kind, bars.depth)
    for i, (begin, end, kind, depth) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        row = next((r for r, until in enumerate(ends_ns) if until <= begin), len(ends_ns))
        if begin == end and kind == PHASE:
            beside = (
                r
                for r in range(row)
                if occupants[r][0] == PHASE and occupants[r][1] >= depth and ends_ns[r] > begin
            )
            row = next(beside, row)
            rows[i] = row
            if row < len(ends_ns) and ends_ns[row] > begin:
                continue
        if row == len(ends_ns):
            ends_ns.append(end)
            occupants.append((kind, depth))
        else:
            ends_ns[row], occupants[row] = end, (kind, depth)
        rows[i] = row
    return rows


def css_color(color: int) -> str:
    """A colour of the exports as "#rrggbb"."""
    return f"#{color & 0xFFFFFF:06x}"
