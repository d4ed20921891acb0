# SPDX-License-Identifier: Apache-2.0
"""The trees of samples: what belongs to a phase, its heaviest lines, and its flame graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace

from pyinstrument_gpu.aspects.stacks.data import Stacks
from pyinstrument_gpu.core.record import SourceLine, is_installed
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import FlameBox
from pyinstrument_gpu.parts.words import counted, printable, small_percent

_NEARLY_ALL = 0.95
_LEAST_AROUND = 0.9
_LEAST_PHASES = 3
"""A line from which as much of the time of steps was called, and most of so many phases, is one
around the loop."""
_MOST_DEPTH = 40
"""Of a flame graph."""


@dataclass(frozen=True)
class LineSamples:
    """A line of the program, with all that was called from there in libraries."""

    line: SourceLine
    samples: int
    time_ns: int


@dataclass(frozen=True)
class FunctionSamples:
    """A function of the program, with all that was called from there in libraries.

    Attributes:
        line, last: the lines in which it was: the heaviest one alone, if it takes half of the
            function's time and more; else from the first to the last.
    """

    line: SourceLine
    last: int
    samples: int
    time_ns: int


@dataclass(frozen=True)
class PhaseTree:
    """The samples in one phase, without those in phases inside it.

    Attributes:
        path: of the phase; empty outside of phases.
        root: the number of its node.
        around_loop: the lines that steps were called from, the outermost first.
    """

    stacks: Stacks
    scope: Scope
    path: str
    root: int
    children: Sequence[Sequence[int]]
    samples_in: Sequence[int]
    time_ns_in: Sequence[int]
    around_loop: tuple[SourceLine, ...] = ()

    @property
    def samples(self) -> int:
        return self.samples_in[self.root]

    @property
    def time_ns(self) -> int:
        return self.time_ns_in[self.root]

    @property
    def unknown_ns(self) -> int:
        """The time of the samples of which the stack is not known."""
        return self.stacks.nodes[self.root].time_ns

    def lines(self) -> list[LineSamples]:
        """The lines of the program that were at work, the heaviest first: of each stack the
        innermost line outside of libraries, or the innermost of all where there is none. Where the
        program calls a library that has the loop, that call says nothing of a phase: there the line
        of the loop stands for what the library does."""
        found: dict[tuple[str, int], LineSamples] = {}
        around = self.around_loop
        in_library = any(is_of_program(line.file) for line in around)
        # With each node the line that it counts for, and how many lines around the loop it has so
        # far; None inside of them.
        pending: list[tuple[int, int, int | None]] = [(self.root, -1, 0)]
        while pending:
            number, place, depth = pending.pop()
            node = self.stacks.nodes[number]
            if node.samples and number != self.root:
                line = self.line(place)
                # A comprehension, which is a function of its own, counts for the one it stands in.
                known = found.get((line.file, line.line), LineSamples(line, 0, 0))
                found[line.file, line.line] = LineSamples(
                    min(known.line, line, key=lambda one: len(one.function)),
                    known.samples + node.samples,
                    known.time_ns + node.time_ns,
                )
            for child in self.children[number]:
                inner = self.stacks.nodes[child].place
                if depth is not None:
                    goes_on = depth < len(around) and self.line(inner) == around[depth]
                    pending.append((child, inner, depth + 1 if goes_on else None))
                    continue
                stands = in_library or self._is_of_program(place)
                is_line = self._is_of_program(inner) or not stands
                pending.append((child, inner if is_line else place, None))
        return sorted(found.values(), key=lambda one: (-one.time_ns, one.line.file, one.line.line))

    def functions(self, without: Container[str] = ()) -> list[FunctionSamples]:
        """The functions of the program that were at work, the heaviest first, by their lines but
        for some (`file:line`)."""
        lines: dict[tuple[str, str], list[LineSamples]] = {}
        for one in self.lines():
            if is_of_program(one.line.file) and f"{one.line.file}:{one.line.line}" not in without:
                lines.setdefault((one.line.file, one.line.function), []).append(one)
        found = []
        for (file, name), known in lines.items():
            time_ns, heaviest = sum(one.time_ns for one in known), known[0]
            samples = sum(one.samples for one in known)
            numbers = sorted(one.line.line for one in known)
            if 2 * heaviest.time_ns >= time_ns:
                numbers = [heaviest.line.line]
            first = SourceLine(file, numbers[0], name)
            found.append(FunctionSamples(first, numbers[-1], samples, time_ns))
        return sorted(found, key=lambda one: (-one.time_ns, one.line.file, one.line.line))

    def line(self, place: int) -> SourceLine:
        function, line = self.stacks.places[place]
        file, name = self.stacks.functions[function]
        return SourceLine(file, line, name)

    def boxes(self, least_share: float, name_of: Callable[[SourceLine], str]) -> Iterator[FlameBox]:
        """Yield what a flame graph shows, the outermost first, without lines of a smaller share,
        and as deep as can be read. What nearly all samples were called from and is no line of the
        program is left out."""
        top, whole_ns = self.root, self.time_ns
        while children := self.children[top]:
            inner = max(children, key=self.time_ns_in.__getitem__)
            is_of_program = self._is_of_program(self.stacks.nodes[inner].place)
            if is_of_program or self.time_ns_in[inner] < _NEARLY_ALL * whole_ns:
                break
            top = inner
        pending = [(top, 0.0, -1)]
        while pending and whole_ns:
            number, left, depth = pending.pop(0)
            for child in sorted(self.children[number], key=lambda one: -self.time_ns_in[one]):
                share = self.time_ns_in[child] / whole_ns
                if share < least_share or depth + 1 == _MOST_DEPTH:
                    break
                line = self.line(self.stacks.nodes[child].place)
                name = printable(f"{line.function} {name_of(line)}")
                tip = f"{small_percent(share, 1)}, {counted(self.samples_in[child], 'sample')}"
                yield FlameBox(name, tip, depth + 1, left, share)
                pending.append((child, left, depth + 1))
                left += share

    def whole_stacks(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield each stack that was seen, its places with the outermost first, and its time."""
        pending: list[tuple[int, tuple[int, ...]]] = [(self.root, ())]
        while pending:
            number, places = pending.pop()
            if self.stacks.nodes[number].time_ns:
                yield places, self.stacks.nodes[number].time_ns
            for child in self.children[number]:
                pending.append((child, (*places, self.stacks.nodes[child].place)))

    def _is_of_program(self, place: int) -> bool:
        return is_of_program(self.stacks.functions[self.stacks.places[place][0]][0])


def is_of_program(file: str) -> bool:
    """Return whether a file is the program's own: neither a library nor made up."""
    return not file.startswith("<") and not is_installed(file)


def phase_trees(stacks: Stacks) -> list[PhaseTree]:
    """The trees of all phases and scopes, the one with most time first."""
    nodes = stacks.nodes
    children: list[list[int]] = [[] for _ in nodes]
    samples, time_ns = [node.samples for node in nodes], [node.time_ns for node in nodes]
    for number in range(len(nodes) - 1, -1, -1):
        parent = nodes[number].parent
        if parent >= 0:
            children[parent].append(number)
            samples[parent] += samples[number]
            time_ns[parent] += time_ns[number]
    found = [
        PhaseTree(stacks, node.scope, path, number, children, samples, time_ns)
        for number, node in enumerate(nodes)
        if node.scope is not None
        for path in ["" if node.place < 0 else stacks.paths[node.place]]
    ]
    around = tuple(_lines_around_loop([one for one in found if one.scope is Scope.STEP]))
    return sorted((replace(one, around_loop=around) for one in found), key=lambda one: -one.time_ns)


def _lines_around_loop(phases: list[PhaseTree]) -> Iterator[SourceLine]:
    """Yield the lines that steps were called from, the outermost first. With few phases that may be
    the one line that a step consists of, so there are none."""
    least_ns = _LEAST_AROUND * sum(one.time_ns - one.unknown_ns for one in phases)
    inside = [(one, [one.root]) for one in phases]
    while True:
        times_ns: Counter[SourceLine] = Counter()
        callers = [(one, _by_line(one, numbers)) for one, numbers in inside]
        for one, known in callers:
            times_ns.update({line: _time_ns(one, numbers) for line, numbers in known.items()})
        line = max(times_ns, key=times_ns.__getitem__, default=None)
        if line is None or times_ns[line] < least_ns:
            break
        inside = [(one, known.get(line, [])) for one, known in callers]
        if sum(2 * _time_ns(*entry) > entry[0].time_ns for entry in inside) < _LEAST_PHASES:
            break
        yield line


def _by_line(tree: PhaseTree, numbers: list[int]) -> dict[SourceLine, list[int]]:
    """Return the nodes inside these by their lines."""
    found: dict[SourceLine, list[int]] = {}
    for child in (child for number in numbers for child in tree.children[number]):
        found.setdefault(tree.line(tree.stacks.nodes[child].place), []).append(child)
    return found


def _time_ns(tree: PhaseTree, numbers: list[int]) -> int:
    return sum(tree.time_ns_in[number] for number in numbers)
