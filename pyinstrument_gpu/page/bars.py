# SPDX-License-Identifier: Apache-2.0
"""The bars of the page's timeline: what each thread and stream did in a stretch of time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export.labels import STEP_COLOR, Label, RangeKind, labels_of
from pyinstrument_gpu.export.ranges import by_begin, joined
from pyinstrument_gpu.export.timeline import RunTimeline, wait_times
from pyinstrument_gpu.parts.words import printable


class BarLabels:
    """The labels of a window, each once: what bars are called in the bar, and in full; what they
    are, their colour, and that of text on it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, RangeKind, str, str]] = []
        self._places: dict[tuple[int, int], int] = {}

    def places(
        self, run: Run, which: int, labels: Sequence[Label], marks: NDArray[np.void]
    ) -> NDArray[np.int64]:
        """The place of each bar's label in `found`.

        Args:
            which: the number of the run.
            labels: all of the run, as `marks` number them.
        """
        # Each step has a label of its own.
        keys = np.where(marks["kind"] == RangeKind.STEP, -1 - marks["step"], marks["label"])
        known, inverse = np.unique(keys, return_inverse=True)
        places = []
        for key in known.tolist():
            if (which, key) not in self._places:
                self._places[which, key] = len(self.found)
                self.found.append(_bar_label(run, labels, key))
            places.append(self._places[which, key])
        return np.array(places, np.int64)[inverse]


def _bar_label(run: Run, labels: Sequence[Label], key: int) -> tuple[str, str, RangeKind, str, str]:
    if key < 0:
        name = path = f"step {-1 - key}"
        kind, color = RangeKind.STEP, STEP_COLOR
    else:
        kind, of, name, color, suffix = labels[key]
        path = (run.paths[of] if kind in (RangeKind.PHASE, RangeKind.OPEN_PHASE) else name) + suffix
    css = css_color(color)
    return printable(name), printable(path), kind, css, ink_on(css)


@dataclass(frozen=True)
class DrawnTrack:
    """The bars of one thread or stream, in the order in which they began.

    Attributes:
        run: whose it is, by its place among the runs.
        name: of the thread or stream.
        is_device: whether it is a stream.
        begin_ns: since the window began, an array like those that follow.
        duration_ns: of each bar.
        label: into the labels of the window.
        marks: what they are (`MARK_DTYPE`).
        pair: of a phase with a device time a number that its bars on thread and stream share; -1
            of others.
    """

    run: int
    name: str
    is_device: bool
    begin_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    label: NDArray[np.int64]
    marks: NDArray[np.void]
    pair: NDArray[np.int64]

    def some(self, bars: NDArray[np.bool_]) -> DrawnTrack:
        columns = ("begin_ns", "duration_ns", "label", "marks", "pair")
        return replace(self, **{name: getattr(self, name)[bars] for name in columns})

    def plain(self, pairs: NDArray[np.int64]) -> dict[str, Any]:
        """The track as the page's script has it, with the places of its pairs in `pairs`."""
        columns = {
            "begin": self.begin_ns,
            "duration": self.duration_ns,
            "row": self.row(),
            "label": self.label,
            "step": self.marks["step"],
            "pair": places_in(pairs, self.pair),
        }
        blocked_ns = self.marks["blocked_ns"]
        if not self.is_device and (blocked_ns >= 0).any():
            columns["blocked"] = blocked_ns
        return {
            "run": self.run,
            "name": printable(self.name),
            "device": self.is_device,
            **{name: column.tolist() for name, column in columns.items()},
        }

    def row(self) -> NDArray[np.int64]:
        """Return the number of bars that each lies in, as drawn: it has the first row that is free
        when it begins, so what nests is drawn nested.

        A phase without length that begins together with one that is not around it lies on that
        one's row: devices have a coarse clock, so this is common there.
        """
        rows = np.empty(len(self.begin_ns), np.int64)
        ends_ns: list[int] = []
        occupants: list[tuple[int, int]] = []
        ends = self.begin_ns + self.duration_ns
        columns = (self.begin_ns, ends, self.marks["kind"], self.marks["depth"])
        for i, (begin, end, kind, depth) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            row = next((r for r, until in enumerate(ends_ns) if until <= begin), len(ends_ns))
            if begin == end and kind == RangeKind.PHASE:
                beside = (
                    r
                    for r in range(row)
                    if occupants[r][0] == RangeKind.PHASE
                    and occupants[r][1] >= depth
                    and ends_ns[r] > begin
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


class RunBars:
    """The bars of a run. The times of its spans are kept as columns: they are looked through for
    each window."""

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self._number = number
        self._labels = labels_of(run)
        self._span_times, self._module_times = _times(run.spans), _times(run.module_spans)
        self._compilation_times = _host_times(run.compilation_spans)
        self._batch_times = _host_times(run.loader_batches)
        self._step_on_device = np.where(has_device_times(run.spans), run.spans["step"], -1)

    def device_is_done_ns(self, step: int) -> int:
        """Return when the device had done what phases of the step enqueued; -1 if unknown."""
        ends_ns = self.run.spans["device_end_ns"][self._step_on_device == step]
        return int(ends_ns.max(initial=-1))

    def tracks(self, begin_ns: int, end_ns: int, labels: BarLabels) -> Iterator[DrawnTrack]:
        """Yield the tracks of a window, for each thread, the main one first, then each stream, and
        each worker of the loader."""
        window = begin_ns, end_ns
        timeline = RunTimeline(self._within(window))
        threads = timeline.threads(with_steps=True, with_waits=True)
        for track in chain(threads, timeline.streams(), timeline.workers()):
            bars = joined(list(by_begin(*track.tables)))
            bars = bars.some(_overlap(window, bars.begin_ns, bars.end_ns))
            if not len(bars.number):
                continue
            marks = timeline.marks(bars.number)
            yield DrawnTrack(
                run=self._number,
                name=track.name,
                is_device=track.is_stream,
                begin_ns=bars.begin_ns - begin_ns,
                duration_ns=bars.end_ns - bars.begin_ns,
                label=labels.places(self.run, self._number, self._labels, marks),
                marks=marks,
                pair=np.where(marks["span"] < 0, -1, self._number << 40 | marks["span"]),
            )

    def _within(self, window: tuple[int, int]) -> Run:
        """The run with what overlaps a window on the host or on a device, and nothing else."""
        whole, run = self.run, copy.copy(self.run)
        run.spans = whole.spans[_overlap(window, *self._span_times)]
        run.module_spans = whole.module_spans[_overlap(window, *self._module_times)]
        run.compilation_spans = whole.compilation_spans[_overlap(window, *self._compilation_times)]
        run.loader_batches = whole.loader_batches[_overlap(window, *self._batch_times)]
        steps, waits = whole.steps.array, whole.syncs.events
        run.steps = Steps(steps[_overlap(window, *RunTimeline(whole).step_times(steps))])
        run.syncs = replace(whole.syncs, events=waits[_overlap(window, *wait_times(waits))])
        return run


def _host_times(records: NDArray[np.void]) -> list[NDArray[np.int64]]:
    return [np.ascontiguousarray(records[name]) for name in ("host_begin_ns", "host_end_ns")]


def _times(records: NDArray[np.void]) -> list[NDArray[np.int64]]:
    """Return when records began and ended on the host, and on their device."""
    on_device = ("device_begin_ns", "device_end_ns")
    return [*_host_times(records), *(np.ascontiguousarray(records[name]) for name in on_device)]


def _overlap(window: tuple[int, int], *times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which ranges overlap a window, or begin with it and have no length. Of ranges that
    have several pairs of begin and end, those of which one pair does."""
    first_ns, last_ns = window
    found = np.zeros(len(times_ns[0]), np.bool_)
    for begin_ns, end_ns in zip(times_ns[::2], times_ns[1::2], strict=True):
        found |= (begin_ns < last_ns) & (end_ns > first_ns)
        found |= (begin_ns == first_ns) & (end_ns == first_ns)
    return found


def css_color(color: int) -> str:
    """A colour of the exports as "#rrggbb"."""
    return f"#{color & 0xFFFFFF:06x}"


def ink_on(color: str) -> str:
    """Black or white, whichever is read more easily on a colour "#rrggbb"."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    red, green, blue = linear
    return "#000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#fff"
