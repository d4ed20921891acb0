# SPDX-License-Identifier: Apache-2.0
"""Phases inside CUDA graphs as an aspect of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pyinstrument_gpu.aspects.graphs import NAME
from pyinstrument_gpu.aspects.graphs.data import (
    UNKNOWN_STEP,
    GraphPhases,
    PhaseTimes,
    decode_graph_phases,
)
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, printable

_MOST_ROWS = 50


@dataclass(frozen=True)
class PhasesInGraphs:
    """The times of phases inside CUDA graphs.

    Attributes:
        graphs: how many graphs with phases in them were replayed.
        marks: places in these that are marked by a kernel of their own.
        replays: of all graphs.
        phases: the one with the largest time first.
        ambiguous: how many graphs are not told of, as which replay a time is of is unknown.
        without_step: of the times in the history, how many have no known step.
    """

    graphs: int
    marks: int
    replays: int
    phases: tuple[PhaseTimes, ...]
    ambiguous: int
    without_step: int


def phases_in_graphs(run: Run) -> PhasesInGraphs | None:
    known: GraphPhases | None = run.graph_phases
    if known is None:
        return None
    replayed = [graph for graph in known.graphs if graph.replays or graph.is_ambiguous]
    if not replayed:
        return None
    return PhasesInGraphs(
        graphs=len(replayed),
        marks=sum(graph.marks for graph in replayed),
        replays=sum(graph.replays for graph in replayed),
        phases=tuple(sorted(known.phases, key=lambda one: -one.total_ns)),
        ambiguous=sum(graph.is_ambiguous for graph in replayed),
        without_step=int(np.count_nonzero(known.runs["step"] == UNKNOWN_STEP)),
    )


class GraphsAspect(DocumentAspect[Run, PhasesInGraphs]):
    """Phases inside captured CUDA graphs."""

    name = NAME
    noted = "phases in CUDA graphs"
    heading = "Phases in CUDA graphs"
    section_type = PhasesInGraphs | None
    about = "what phases inside CUDA graphs took in each replay, by the device's clock."

    def decode(self, data: bytes, found: Found) -> GraphPhases:
        return decode_graph_phases(data, found)

    def join_history(self, run: Run, earlier: Run) -> None:
        if run.graph_phases is not None and earlier.graph_phases is not None:
            run.graph_phases = replace(run.graph_phases, runs=earlier.graph_phases.runs)

    def section(self, run: Run) -> PhasesInGraphs | None:
        return phases_in_graphs(run)

    def parts(self, found: PhasesInGraphs, document: ReportedRun) -> Iterator[Part]:
        unit = Unit.fitting(max((one.p95_ns for one in found.phases), default=0))
        yield Sentence()
        yield Sentence(f"Inside CUDA graphs: {unit.name} of device time, in each replay", "title")
        rows = [
            Row(
                printable(one.path),
                [
                    f"{one.count:,}",
                    *(
                        unit.text(time_ns if one.count else None)
                        for time_ns in (one.mean_ns, one.p50_ns, one.p95_ns)
                    ),
                    f"{one.lost:,}" if one.lost else UNKNOWN,
                ],
                path=one.path,
            )
            for one in found.phases[:_MOST_ROWS]
        ]
        if rows:
            yield table(["phase", "timed", "mean", "p50", "p95", "lost"], [rows])
        if len(found.phases) > _MOST_ROWS:
            more = len(found.phases) - _MOST_ROWS
            yield Sentence(f"... and {counted(more, 'more phase')}", "warn")
        yield Sentence(
            f"{counted(found.graphs, 'graph')} with {counted(found.marks, 'mark')}, replayed "
            f"{found.replays:,} times. A mark is a kernel, which each replay runs, also when "
            "nothing is recorded",
            "note",
        )
        if any(one.lost for one in found.phases):
            yield Sentence("lost: times that were overwritten before they were read", "note")
        if found.without_step:
            yield Sentence(f"The step of {found.without_step:,} of these times is unknown", "warn")
        if found.ambiguous:
            yield Sentence(
                f"Times of {counted(found.ambiguous, 'graph')} are left out: nodes ran more or "
                "less often than the graph was replayed, as in loops or with two executables",
                "warn",
            )

    def unknown(self, run: Run) -> Iterable[str]:
        known: GraphPhases | None = run.graph_phases
        if known is not None and known.failure:
            yield f"Phases inside CUDA graphs: {known.failure}."
        elif known is None and run.dropped.get("device_capturing"):
            yield "Phases inside CUDA graphs: no marks were captured with them."


ASPECT = GraphsAspect()
