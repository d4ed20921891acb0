# SPDX-License-Identifier: Apache-2.0
"""A run as a process of Nsight Systems, with rows of ranges that nest.

Its rows are its threads, with steps around their phases and modules in them, where they waited for
a device, the device streams, with steps too, and the values of metrics. What does not nest goes to
a further row, "name (2)".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.labels import Colors, Label, labels_of
from pyinstrument_gpu.export.ranges import Ranges, lane_name
from pyinstrument_gpu.export.runs import UniqueIds, offsets_ns_of, process_name
from pyinstrument_gpu.export.timeline import RunTimeline, Track

ID_LIMIT = 1 << 24
"""Nsight Systems packs the numbers of processes and threads into 24 bits each."""


@dataclass(frozen=True)
class RowPart:
    """Ranges that nest: some of a row's, or all. None begins before those of the part before, some
    of which may still be open.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other row of the process: a thread's own number
            where it can be.
        name: that of the track, or "name (2)" and so on.
        ranges: as `RunTimeline.placed` has them; values of metrics stand apart from all others.
    """

    id: int
    name: str
    ranges: Ranges


@dataclass(frozen=True)
class NsightProcess:
    """A run as a process.

    Attributes:
        id: below `ID_LIMIT`, unlike that of any other process: its own number where it can be.
        name: its rank and command.
        timeline: what it did.
    """

    id: int
    name: str
    timeline: RunTimeline

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """What its ranges are called, as `RunTimeline.marks` numbers them."""
        return labels_of(self.timeline.run, Colors())  # as live ranges, which know no others

    def tracks(self) -> Iterator[Iterator[RowPart]]:
        """For each thread that did something, then for those that waited, each stream and each
        metric, its rows, a part at a time. To be read one after the other."""
        ids = UniqueIds(ID_LIMIT)
        thread_ids = ids.assign([thread.native_id for thread in self.timeline.run.threads])
        timeline = self.timeline
        tracks = chain(
            timeline.threads(with_steps=True),
            timeline.waits(),
            timeline.streams(with_steps=True),
            timeline.metrics(),
        )
        for track in tracks:
            of_lane = {} if track.thread is None else {0: thread_ids[track.thread]}
            yield self._parts(track, of_lane, ids)

    def _parts(self, track: Track, id_of_lane: dict[int, int], ids: UniqueIds) -> Iterator[RowPart]:
        for by_lane in self.timeline.placed(track):
            for lane in range(len(id_of_lane), max(by_lane) + 1):
                id_of_lane[lane] = ids.free()
            for lane, ranges in by_lane.items():
                name = lane_name(track.name, lane)
                yield RowPart(id_of_lane[lane], name, ranges)


def processes_of(runs: Sequence[Run], advance: Callable[[int], None]) -> list[NsightProcess]:
    """The runs on one time axis, which begins with the earliest of them; `advance` is called as
    `RunTimeline` calls it."""
    ids = UniqueIds(ID_LIMIT).assign([run.environment.get("pid", 0) for run in runs])
    return [
        NsightProcess(id, process_name(run), RunTimeline(run, offset_ns, advance))
        for id, run, offset_ns in zip(ids, runs, offsets_ns_of(runs), strict=True)
    ]
