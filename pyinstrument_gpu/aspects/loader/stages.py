# SPDX-License-Identifier: Apache-2.0
"""The functions of a dataset, its transforms and its collate function that make batches.

The samples of a worker's stack are a tree of lines. A stage is the first function on the way down
that does something: containers of transforms, datasets that wrap others, and the dataset's own
methods are passed by, and what these do themselves is a stage of one line each. A function of the
program that a library calls, as of a data set with a transform, is a stage of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyinstrument_gpu.analysis.sampled_time import nodes_of_phase
from pyinstrument_gpu.aspects.loader.data import LineTime
from pyinstrument_gpu.core.record import SourceLine, is_installed

_FETCH = "torch/utils/data/_utils/fetch.py"
_PASSED = {
    *("fetch", "__getitem__", "__getitems__", "__iter__", "__next__", "<listcomp>", "<genexpr>"),
    *("_call_impl", "_wrapped_call_impl", "apply_with_params"),
}
_PIPELINES = "webdataset/filters.py", "webdataset/pipeline.py", "webdataset/tariterators.py"
"""Generators over generators: each is called by the one behind it."""
_CALLS = {"__call__", "forward"}
_CONTAINERS = {
    *("Compose", "BaseCompose", "Sequential", "OneOf", "SomeOf", "RandomApply"),
    *("Transform", "_RandomApplyTransform", "BasicTransform"),
}
"""Classes whose calls are those of what they contain, or of what is derived from them."""


@dataclass(frozen=True)
class Stage:
    """A stage of making batches.

    Attributes:
        name: the function, or the line.
        line: of the program in it that took most, else of the function; None where there is none.
        time_ns: that samples stand for.
    """

    name: str
    line: SourceLine | None
    time_ns: int


class LineTree(NamedTuple):
    """Lines in which samples found a thread, as a tree; see `Loader`, whose names these are."""

    functions: Sequence[tuple[str, str]]
    places: Sequence[tuple[int, int]]
    nodes: Sequence[LineTime]
    samples: int = 0


def tree_of_phase(stacks: Any, phase: str) -> LineTree:
    """Return what the main thread did in a phase in steps, as far as it was sampled."""
    numbers: dict[int | None, int] = {None: -1}
    nodes: list[LineTime] = []
    samples = 0
    for number, around, node in nodes_of_phase(stacks, phase):
        numbers[number] = len(nodes)
        nodes.append(LineTime(numbers[around], node.place, node.time_ns))
        samples += node.samples
    if not nodes:
        return LineTree((), (), ())
    return LineTree(stacks.functions, stacks.places, nodes, samples)


def stages_of(tree: LineTree) -> list[Stage]:
    """The stages, the longest first. They add up to the time of all samples that found the thread
    fetching a batch."""
    return _Division(tree).stages()


class _Division:
    def __init__(self, tree: LineTree) -> None:
        self._tree = tree
        self._children: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(tree.nodes):
            self._children[node.parent].append(number)
        self._times: dict[tuple[str, str], int] = defaultdict(int)
        self._lines: dict[tuple[str, str], dict[SourceLine, int]] = defaultdict(
            lambda: defaultdict(int)
        )

    def stages(self) -> list[Stage]:
        pending = list(self._children[-1])
        while pending:
            number = pending.pop()
            line = self._line(number)
            if line.file.endswith(_FETCH) and line.function.endswith(".fetch"):
                self._divide(number)
            else:
                pending += self._children[number]
        stages = []
        for (file, name), time_ns in self._times.items():
            lines = self._lines[file, name]
            first = max(lines, key=lambda one: (lines[one], -one.line)) if lines else None
            stages.append(Stage(name, first, time_ns))
        return sorted(stages, key=lambda one: (-one.time_ns, one.name))

    def _divide(self, root: int) -> None:
        pending: list[tuple[int, tuple[str, str] | None]] = [(root, None)]
        while pending:
            number, stage = pending.pop()
            line = self._line(number)
            if stage is None or (self._is_program(number) and is_installed(stage[0])):
                stage = None if _is_passed(line) else (line.file, line.function)
            self._add(stage or (line.file, f"{line.function}:{line.line}"), number, root)
            pending += [(child, stage) for child in self._children[number]]

    def _add(self, stage: tuple[str, str], number: int, root: int) -> None:
        time_ns = self._tree.nodes[number].time_ns
        if not time_ns:
            return
        self._times[stage] += time_ns
        while number != root and not self._is_program(number):
            number = self._tree.nodes[number].parent
        if number != root:
            self._lines[stage][self._line(number)] += time_ns

    def _line(self, number: int) -> SourceLine:
        function, line = self._tree.places[self._tree.nodes[number].place]
        file, name = self._tree.functions[function]
        return SourceLine(file, line, name)

    def _is_program(self, number: int) -> bool:
        file = self._line(number).file
        return not file.startswith("<") and not is_installed(file)


def _is_passed(line: SourceLine) -> bool:
    *owners, name = line.function.replace(".<locals>", "").split(".")
    is_container = name in _CALLS and bool(owners) and owners[-1] in _CONTAINERS
    return name in _PASSED or is_container or line.file.endswith(_PIPELINES)
