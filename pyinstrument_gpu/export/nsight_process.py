# SPDX-License-Identifier: Apache-2.0
"""A run as a process of Nsight Systems, with rows of ranges that nest.

Its rows are its threads, with steps around their phases and modules in them, where they waited for
a device, the device streams, with steps too, and the values of metrics. What does not nest goes to
a further row, "name (2)". The label of what was still open says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.export.lanes import lane_name
from pyinstrument_gpu.export.palette import (
    METRIC_COLOR,
    MODULE_COLORS,
    STEP_COLOR,
    SYNC_COLOR,
    color_of,
)
from pyinstrument_gpu.export.process_name import process_name
from pyinstrument_gpu.export.ranges import Ranges
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of
from pyinstrument_gpu.export.timeline import Timeline, Track, sync_name
from pyinstrument_gpu.export.unique_ids import UniqueIds
from pyinstrument_gpu.model.distinct import distinct
from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData

ID_LIMIT = 1 << 24
"""Nsight Systems packs the numbers of processes and threads into 24 bits each."""

_OPEN = " (open)"
_PASSES = {
    ModulePass.FORWARD: "",
    ModulePass.BACKWARD: " (backward)",
    ModulePass.RECOMPUTE: " (recompute)",
}


@dataclass(frozen=True)
class Label:
    """What a range is called, and how it looks.

    Attributes:
        text: its name. Of a step the number of the step follows.
        color: as 0xAARRGGBB.
        category: "phase", "step", "module", "sync" or "metric".
        suffix: what stands behind the name, in parentheses, if anything does.
    """

    text: str
    color: int
    category: str = "phase"
    suffix: str = ""


@dataclass(frozen=True)
class RowPart:
    """Ranges that nest: some of a row's, or all. None begins before those of the part before, some
    of which may still be open.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other row of the process: a thread's own number
            where it can be.
        name: that of the track, or "name (2)" and so on.
        on_device: whether the times are the device's.
        content: what the ranges are, as in `Track`.
        ranges: as `Timeline.placed` has them.
    """

    id: int
    name: str
    on_device: bool
    content: str
    ranges: Ranges


@dataclass(frozen=True)
class Process:
    """A run as a process.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other process: its own number where it can be.
        name: its rank and command.
        timeline: what it did.
    """

    id: int
    name: str
    timeline: Timeline

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """What its ranges are called: phases, phases that were open, steps, the open step, each
        module in each kind of pass, each place that waits, and each metric."""
        run = self.timeline.run
        phases = [Label(name, color_of(name)) for name in run.names]
        open_phases = [replace(phase, suffix=_OPEN) for phase in phases]
        steps = [Label("step", STEP_COLOR, "step", suffix) for suffix in ("", _OPEN)]
        modules = [
            Label(name, MODULE_COLORS[kind], "module", suffix)
            for name in run.module_names
            for kind, suffix in _PASSES.items()
        ]
        syncs = [Label(sync_name(run, site), SYNC_COLOR, "sync") for site in run.syncs.sites]
        metrics = [Label(name, METRIC_COLOR, "metric") for name in run.metric_names]
        return (*phases, *open_phases, *steps, *modules, *syncs, *metrics)

    def labels_and_steps(
        self, ranges: Ranges, content: str = "phases"
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each range the index into `labels`, and the index of its step, -1 none."""
        timeline, run = self.timeline, self.timeline.run
        if content == "metrics":
            metrics = run.metrics[ranges.number]
            first = len(self.labels) - len(run.metric_names)
            return first + metrics["name"].astype(np.int64), metrics["step"]
        if content == "syncs":
            syncs = run.syncs.events[ranges.number]
            first = len(self.labels) - len(run.metric_names) - len(run.syncs.sites)
            return first + syncs["site"].astype(np.int64), syncs["step"]
        names = len(run.names)
        label, step = np.empty((2, len(ranges.number)), np.int64)
        is_step, is_module = ranges.number >= timeline.first_step, ranges.number < 0
        is_phase = ~(is_step | is_module)
        is_open = ranges.number[is_phase] >= len(timeline.run.spans)
        phases = timeline.phases_at(ranges.number[is_phase])
        steps = timeline.steps_at(ranges.number[is_step])
        modules = timeline.modules_at(ranges.number[is_module])
        label[is_phase], step[is_phase] = phases["phase"] + names * is_open, phases["step"]
        label[is_step], step[is_step] = 2 * names + (steps["end_ns"] < 0), steps["index"]
        of_module = modules["module"] * len(ModulePass) + modules["kind"]
        label[is_module], step[is_module] = 2 * names + 2 + of_module, modules["step"]
        return label, step

    def tracks(self) -> Iterator[Iterator[RowPart]]:
        """For each thread that did something, then for those that waited, each stream and each
        metric, its rows, a part at a time. To be read one after the other."""
        ids = UniqueIds(ID_LIMIT)
        thread_ids = ids.assign([thread.native_id for thread in self.timeline.run.threads])
        timeline = self.timeline
        tracks = chain(
            timeline.threads(with_steps=True),
            timeline.syncs(),
            timeline.streams(with_steps=True),
            timeline.metrics(),
        )
        for track in tracks:
            of_lane = {} if track.thread is None else {0: thread_ids[track.thread]}
            yield self._parts(track, of_lane, ids)

    def _parts(self, track: Track, id_of_lane: dict[int, int], ids: UniqueIds) -> Iterator[RowPart]:
        for ranges, lanes in self.timeline.placed(track):
            for lane in range(len(id_of_lane), lanes.max() + 1):
                id_of_lane[lane] = ids.free()
            for lane in distinct(lanes).tolist():
                yield RowPart(
                    id=id_of_lane[lane],
                    name=lane_name(track.name, lane),
                    on_device=track.is_stream,
                    content=track.content,
                    ranges=ranges.some(lanes == lane),
                )


def processes_of(runs: Sequence[RunData], advance: Callable[[int], None]) -> list[Process]:
    """The runs on one time axis, which begins with the earliest of them; `advance` is called as
    `Timeline` calls it."""
    ids = UniqueIds(ID_LIMIT).assign([run.environment.get("pid", 0) for run in runs])
    return [
        Process(id, process_name(run), Timeline(run, offset_ns, advance))
        for id, run, offset_ns in zip(ids, runs, offsets_ns_of(runs), strict=True)
    ]
