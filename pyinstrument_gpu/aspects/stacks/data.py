# SPDX-License-Identifier: Apache-2.0
"""The data of the main thread's stack in a run file and a `Run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from pyinstrument_gpu.aspects.stacks import MOST_TEXT, NAME
from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.json_document import Count, decode_object
from pyinstrument_gpu.core.statistics import Scope

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_MOST = 1 << 16


class StackNode(Struct, frozen=True, array_like=True):
    """A line that was called from another one, or a phase.

    Attributes:
        parent: the number of the node around it, which is smaller than its own. Of a phase minus
            one, minus the number of its `Scope`.
        place: the line, as an index into `Stacks.places`; of a phase its path, as an index into
            `Stacks.paths`, or -1 for what lies outside of phases.
        samples: of the line itself, without those in calls that it makes; of a phase those of which
            the stack was not known, or had no room.
        time_ns: that these samples stand for.
    """

    parent: int
    place: Annotated[int, Meta(ge=-1)]
    samples: Count
    time_ns: Count

    @property
    def scope(self) -> Scope | None:
        """The scope of a phase; None for a line."""
        return None if self.parent >= 0 else Scope(-1 - self.parent)


class Stacks(Struct, frozen=True):
    """Samples of the main thread's stack, as a tree for each phase.

    Attributes:
        is_sampled: whether it could be. Otherwise there is nothing else.
        begin_ns, until_ns: from when to when samples were taken, since the run began.
        stopped_ns: for how long samples have stopped the main thread.
        rested_ns: for how long none were taken, as those before had stopped it for too long.
        lost_ns: the time of samples for which there was no room at all.
        functions: file and name of each.
        places: the function, as an index, and the line.
        nodes: of the trees, each behind the one around it.
        paths: of the phases. The document has none: its phases have the numbers of the run file.
    """

    is_sampled: bool
    begin_ns: Count = 0
    until_ns: Count = 0
    stopped_ns: Count = 0
    lost_ns: Count = 0
    rested_ns: Count = 0
    functions: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=_MOST)] = ()
    places: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=_MOST)] = ()
    nodes: Annotated[tuple[StackNode, ...], Meta(max_length=_MOST)] = ()
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(function >= len(self.functions) for function, _ in self.places):
            raise ValueError("a line is in a function that is not there")
        for number, node in enumerate(self.nodes):
            if node.scope is None and not 0 <= node.place < len(self.places):
                raise ValueError("a sample is in a line that is not there")
            if node.parent >= number:
                raise ValueError("a node stands before the one around it")

    @property
    def sampled_ns(self) -> int:
        """The time that all samples stand for."""
        return max(0, self.until_ns - self.begin_ns - self.rested_ns)


def decode_stacks(data: bytes, paths: Sequence[str]) -> Stacks:
    """Decode the document.

    Args:
        paths: of the run file, those of modules among them.

    Raises:
        RunFileDamagedError: the document does not fit.
    """
    found = decode_object(data, NAME, Stacks)
    used = sorted({node.place for node in found.nodes if node.scope is not None} - {-1})
    if used and used[-1] >= len(paths):
        raise nonsense(NAME, f"there is no phase {used[-1]}")
    numbers = {-1: -1, **{path: number for number, path in enumerate(used)}}
    nodes = tuple(
        node if node.scope is None else replace(node, place=numbers[node.place])
        for node in found.nodes
    )
    return replace(found, nodes=nodes, paths=tuple(paths[path] for path in used))
