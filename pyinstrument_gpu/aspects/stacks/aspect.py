# SPDX-License-Identifier: Apache-2.0
"""The main thread's stack as an aspect of a run: which lines of Python its phases consist of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.aspects.stacks import NAME
from pyinstrument_gpu.aspects.stacks.data import Stacks, decode_stacks
from pyinstrument_gpu.aspects.stacks.functions import (
    LEAST_SAMPLES,
    faster_outside_phases,
    where_of_phase,
)
from pyinstrument_gpu.aspects.stacks.tree import PhaseTree, phase_trees
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import Flame, Part, Row, Sentence, Table
from pyinstrument_gpu.parts.words import counted, duration, printable, small_percent

_MOST_LINES = 10
_SHOWN_LINES = 3
_MOST_SUMMED_UP = 3
_LEAST_SHARE = 0.05
"""A phase that takes less of the samples in steps has no word in the short report."""
_LEAST_BOX = 0.002
_MOST_FLAMES = 20
_SCOPES = {
    Scope.STEP: "in steps",
    Scope.OTHER_THREADS: "in steps of another thread",
    Scope.OUTSIDE: "outside steps",
}


@dataclass(frozen=True)
class StackLine:
    """A line of the program, with all that was called from there in libraries.

    Attributes:
        line: `file:line`.
        function: around it.
        share: of the phase's samples, by the time that they stand for.
    """

    line: str
    function: str
    samples: int
    share: float


@dataclass(frozen=True)
class PhaseStacks:
    """The samples of the main thread in a phase, without the phases inside it.

    Attributes:
        phase: its path; None outside of phases.
        where: "in steps", "in steps of another thread" or "outside steps".
        is_host_bound: whether the host is what limits it; None if that is not known.
        sampled_ns: the time that its samples stand for.
        unknown_ns: of that, the time of samples whose stack was not known, or had no room.
        lines: the heaviest lines, ten at most.
    """

    phase: str | None
    where: str
    is_host_bound: bool | None
    samples: int
    sampled_ns: int
    unknown_ns: int
    lines: tuple[StackLine, ...]


@dataclass(frozen=True)
class StackSamples:
    """Samples of the main thread's stack.

    Attributes:
        samples: how many there are.
        sampled_ns: the time that they stand for.
        stopped_ns: for how long they have stopped the main thread.
        lost_ns: the time of samples for which there was no room.
        rested_ns: for how long none were taken, as those before had stopped it for too long.
        phases: where they were, the phase with most time first.
    """

    samples: int
    sampled_ns: int
    stopped_ns: int
    lost_ns: int
    rested_ns: int
    phases: tuple[PhaseStacks, ...]


class StacksAspect(DocumentAspect[Run, StackSamples]):
    """The lines of Python in which the main thread was."""

    name = NAME
    document = Stacks
    noted = "stacks"
    heading = "Lines of Python"
    comes_first = True
    section_type = StackSamples | None
    about = "what the main thread did in phases, by samples of its stack."

    def decode(self, data: bytes, found: Found) -> Stacks:
        return decode_stacks(data, found.tables.paths)

    def section(self, run: Run) -> StackSamples | None:
        stacks: Stacks | None = run.stacks
        if stacks is None or not stacks.nodes:
            return None
        phases = tuple(_phase(run, tree) for tree in _shown(stacks))
        return StackSamples(
            samples=sum(phase.samples for phase in phases),
            sampled_ns=stacks.sampled_ns,
            stopped_ns=stacks.stopped_ns,
            lost_ns=stacks.lost_ns,
            rested_ns=stacks.rested_ns,
            phases=phases,
        )

    def summary(self, section: StackSamples, document: ReportedRun) -> Iterator[Part]:
        """Yield what lies outside of phases, and phases that the host limits."""
        in_steps = [one for one in section.phases if one.where == _SCOPES[Scope.STEP]]
        least_ns = _LEAST_SHARE * sum(one.sampled_ns for one in in_steps)
        chosen = [
            one
            for one in in_steps
            if (one.phase is None or one.is_host_bound)
            and one.sampled_ns >= least_ns
            and one.samples >= LEAST_SAMPLES
        ]
        for one in chosen[:_MOST_SUMMED_UP]:
            lines = [
                f"{small_percent(line.share, 1)} {line.line}" for line in one.lines[:_SHOWN_LINES]
            ]
            title = "outside phases" if one.phase is None else f"in {one.phase}"
            yield Sentence(printable(f"Python {title}: {', '.join(lines)}"))

    def where(self, run: Run, scope: Scope, phase: str | None) -> str | None:
        return where_of_phase(run, scope, phase)

    def failures(self, run: Run) -> Iterator[Finding]:
        yield from faster_outside_phases(run)

    def parts(self, section: StackSamples, document: ReportedRun) -> Iterator[Part]:
        yield Sentence()
        whole_ns = section.sampled_ns + section.rested_ns
        stopped = small_percent(section.stopped_ns, whole_ns)
        yield Sentence(
            f"Lines of Python in the main thread: {counted(section.samples, 'sample')} in "
            f"{duration(whole_ns)}, which have stopped it for {stopped} of the time",
            "title",
        )
        if section.phases:
            yield Table(
                ["of the samples of a phase", "%", "samples"],
                [[*_rows(one)] for one in section.phases],
                whole_names=True,
            )
        yield Sentence(
            "The time of a line includes what it calls in libraries. That of an operator that "
            "keeps the GIL may count for the line after it.",
            "note",
        )
        if section.lost_ns:
            yield Sentence(f"{duration(section.lost_ns)} of samples did not fit.", "warn")

    def flames(self, run: Run) -> Iterator[Flame]:
        stacks: Stacks | None = run.stacks
        shown = [] if stacks is None else _shown(stacks)
        shown.sort(key=lambda tree: tree.scope is not Scope.STEP)
        for tree in shown[:_MOST_FLAMES]:
            boxes = [*tree.boxes(_LEAST_BOX, run.name_of_line)]
            if boxes:
                yield Flame(_title(tree.path, _SCOPES[tree.scope]), tree.samples, boxes)

    def unknown(self, run: Run) -> Iterable[str]:
        stacks: Stacks | None = run.stacks
        if stacks is not None and not stacks.is_sampled:
            yield (
                "Lines of Python: this interpreter has no GIL, the process was forked by another "
                "thread than the main one, or there was no thread to take samples."
            )


def _shown(stacks: Stacks) -> list[PhaseTree]:
    """Return the trees without those of steps that were profiled, and so slower."""
    return [tree for tree in phase_trees(stacks) if tree.scope in _SCOPES and tree.samples]


def _host_bound(run: Run, path: str) -> bool | None:
    """Return whether the host is what limits a phase in steps. On a machine without a GPU it is."""
    if run.environment.get("gpus") == []:
        return True
    judged = analysis.of(run).bottlenecks(Scope.STEP)
    found = judged.get(run.paths.index(path)) if path in run.paths else None
    if found is None or found.kind == Bottleneck.UNKNOWN:
        return None
    return found.kind == Bottleneck.LAUNCH


def _phase(run: Run, tree: PhaseTree) -> PhaseStacks:
    lines = tuple(
        StackLine(
            line=run.name_of_line(one.line),
            function=one.line.function,
            samples=one.samples,
            share=one.time_ns / tree.time_ns if tree.time_ns else 0.0,
        )
        for one in tree.lines()[:_MOST_LINES]
    )
    return PhaseStacks(
        phase=tree.path or None,
        where=_SCOPES[tree.scope],
        is_host_bound=_host_bound(run, tree.path) if tree.scope is Scope.STEP else None,
        samples=tree.samples,
        sampled_ns=tree.time_ns,
        unknown_ns=tree.unknown_ns,
        lines=lines,
    )


def _title(phase: str, where: str) -> str:
    name = printable(phase or "outside phases")
    return name if where == _SCOPES[Scope.STEP] else f"{name}, {where}"


def _rows(one: PhaseStacks) -> Iterator[Row]:
    yield Row(_title(one.phase or "", one.where), ["", f"{one.samples:,}"], emphasis="bold")
    for line in one.lines[:_SHOWN_LINES]:
        cells = [small_percent(line.share, 1), f"{line.samples:,}"]
        yield Row(printable(f"{line.line} {line.function}"), cells, depth=1)
    if one.unknown_ns:
        cells = [small_percent(one.unknown_ns, one.sampled_ns), ""]
        yield Row("not known, or no room for it", cells, depth=1, emphasis="dim")


ASPECT = StacksAspect()
