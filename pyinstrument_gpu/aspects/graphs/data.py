# SPDX-License-Identifier: Apache-2.0
"""The data of phases inside CUDA graphs: one declaration for file and `Run`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.graphs import NAME
from pyinstrument_gpu.core.arrays import ArrayFields
from pyinstrument_gpu.core.file.blocks import BlockType, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS, known_clocks
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.items import DEVICE_CLOCK_ITEM, GRAPH_PHASE_ITEM, columns
from pyinstrument_gpu.core.file.json_document import LOST_PATH, Count, PathName, decode_object

UNKNOWN_STEP = -2
"""Where a run's step is not known; -1 is none."""

GRAPH_PHASE_DTYPE = np.dtype(
    [
        ("device_begin_ns", "<i8"),
        ("device_end_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("step", "<i8"),
        ("path", "<i4"),
        ("graph", "<i4"),
        ("run", "<i8"),
    ]
)
"""A phase in one replay of a graph: its begin and end on the run's axis, -1 unknown; its time by
the device's clock, exact to its tick; the index of the step in which the replay was called, -1 none
and -2 unknown; indices into `Run.paths` and `GraphPhases.graphs`; and the number of the replay,
counted from 1 since the capture."""


class Graph(Struct, frozen=True):
    """A captured graph with phases in it.

    Attributes:
        device: the device's ordinal.
        marks: how many places in it are marked, each by a kernel of its own.
        replays: how often it was replayed in this run.
        is_ambiguous: whether which replay a time is of can't be told: nothing more is said of it.
    """

    device: Count
    marks: Count
    replays: Count
    is_ambiguous: bool


class PhaseTimes(Struct, frozen=True):
    """A phase in the replays of a graph, by the device's clock.

    Attributes:
        graph: the graph's number, an index into `GraphPhases.graphs`.
        path: around the replay, then in the graph.
        count: how often it was timed: in each replay as often as it is in the graph.
        total_ns, min_ns, max_ns: exact; 0 where it was never timed.
        p50_ns, p95_ns: within 1/32 of their value.
        lost: how many more times were overwritten before they were read.
    """

    graph: Count
    path: PathName
    count: Count
    total_ns: Count
    min_ns: Count
    p50_ns: Count
    p95_ns: Count
    max_ns: Count
    lost: Count

    @property
    def mean_ns(self) -> float | None:
        return self.total_ns / self.count if self.count else None


@dataclass(frozen=True, eq=False)
class GraphPhases(ArrayFields):
    """Phases inside the graphs of a run.

    Attributes:
        graphs: those that were captured with phases in them, earlier recordings of the process
            included.
        phases: their phases, with statistics of all replays.
        runs: the phases one by one (`GRAPH_PHASE_DTYPE`). History: the oldest may be gone.
        failure: why there are none; empty if they can be timed.
        uncertainty_ns: how far the clocks that place a begin may be apart, besides what
            `Run.device_clocks` says.
    """

    graphs: tuple[Graph, ...] = ()
    phases: tuple[PhaseTimes, ...] = ()
    runs: NDArray[np.void] = field(default_factory=lambda: np.empty(0, GRAPH_PHASE_DTYPE))
    failure: str = ""
    uncertainty_ns: Count = 0


def decode_graph_phases(data: bytes, found: Found) -> GraphPhases:
    """The phases up to the first that can't be true."""
    document = decode_object(data, NAME, GraphPhases, found.tables.paths)
    phases = tuple(
        one for one in document.phases if one.path != LOST_PATH and one.graph < len(document.graphs)
    )
    return replace(document, phases=phases, runs=_known_runs(found, document.graphs))


def _known_runs(found: Found, graphs: tuple[Graph, ...]) -> NDArray[np.void]:
    items = found.blocks.records(BlockType.GRAPH_PHASES, GRAPH_PHASE_ITEM).items
    items = items[
        : true_prefix(
            (items["path"] < len(found.tables.paths))
            & (items["graph"] < len(graphs))
            & (items["begin_ns"] >= -1)
            & (items["begin_ns"] < TIME_LIMIT_NS)
            & (items["duration_ns"] >= 0)
            & (items["duration_ns"] < TIME_LIMIT_NS)
        )
    ]
    serials = np.ascontiguousarray(items["step"])
    certain = found.numbering.is_certain(serials, 0)
    step = np.where(certain, found.numbering.indices(serials), UNKNOWN_STEP)
    begin_ns, end_ns = np.full((2, len(items)), -1, np.int64)
    devices = np.array([graph.device for graph in graphs], np.int64)[items["graph"]]
    clock_items = found.blocks.table(BlockType.DEVICE_CLOCKS, DEVICE_CLOCK_ITEM).items
    for clock in known_clocks(clock_items):
        here = (devices == clock.device) & (items["begin_ns"] >= 0)
        begins_ns = items["begin_ns"][here]
        begin_ns[here] = clock.on_run_axis(begins_ns)
        end_ns[here] = clock.on_run_axis(begins_ns + items["duration_ns"][here])
    return columns(
        items, GRAPH_PHASE_DTYPE, step=step, device_begin_ns=begin_ns, device_end_ns=end_ns
    )
