# SPDX-License-Identifier: Apache-2.0
"""The labels of ranges in a timeline, and their colours.

A phase has the colour of its live NVTX range, chosen by its name: table and hash are those of
`csrc/hot/nvtx_range.cpp`. Where two phases of a run would share one, the second by name gets
another, so that a run has as many colours as phases while there are any. Any two of the colours can
also be told apart by eyes that see no red, no green or no blue.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from pyinstrument_gpu.aspects.compilations import DYNAMO
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.run import Run

COLORS = (
    *(0xFF4E79A7, 0xFFF28E2B, 0xFF918DEB, 0xFF5EEBC0, 0xFFAFCC7A, 0xFF8D2FEB),
    *(0xFF803361, 0xFF806B4C, 0xFFA65D21, 0xFF4742A6, 0xFF42A697, 0xFFA0CBE8),
)

STEP_COLOR = 0xFF8C8C8C
"""A grey: steps stand back behind their phases."""

SYNC_COLOR = 0xFFCC3311
"""A red that no phase has: here the host waited."""

METRIC_COLOR = 0xFF009988
"""Of the values of metrics."""

COMPILATION_COLOR = 0xFFEE9ACF
"""A pink that no phase has: torch.compile was at work."""

BATCH_COLOR = 0xFFB8B08D
"""Of the batches that workers of a loader make."""

MODULE_COLORS = {
    ModulePass.FORWARD: 0xFF7EA6E0,
    ModulePass.BACKWARD: 0xFFD5A056,
    ModulePass.RECOMPUTE: 0xFFC98BB9,
}
"""Modules have a colour by the kind of pass, so that one sees which way a model is gone through."""

_OPEN = " (open)"
_PASSES = {
    ModulePass.FORWARD: "",
    ModulePass.BACKWARD: " (backward)",
    ModulePass.RECOMPUTE: " (recompute)",
}


class RangeKind(enum.IntEnum):
    """The kind of a range. Of ranges with the same times that of the higher kind is the outer."""

    WAIT = 0
    MODULE = 1
    PHASE = 2
    OPEN_PHASE = 3
    STEP = 4
    METRIC = 5
    COMPILATION = 6
    GRAPH_PHASE = 7
    BATCH = 8


class Label(NamedTuple):
    """A label of ranges.

    Attributes:
        kind: what they are.
        of: index of the site of a wait, the path of a phase or the name of a metric; of a module
            its index times the number of kinds of passes, plus that of the pass; of a compilation
            its place; of a step and of a batch 0.
        name: their name. Of a step the number of the step follows.
        color: as 0xAARRGGBB.
        suffix: what stands behind the name, in parentheses, if anything does.
    """

    kind: RangeKind
    of: int
    name: str
    color: int
    suffix: str = ""


def labels_of(run: Run, colors: Colors | None = None) -> tuple[Label, ...]:
    """The labels of all ranges that a run can have, by kind and then by what they are of. Phases
    have the colours of `colors_of`, unless others are given."""
    return tuple(_labels(run, colors_of(run) if colors is None else colors))


def _labels(run: Run, colors: Colors) -> Iterator[Label]:
    for number, site in enumerate(run.syncs.sites):
        name = f"wait: {site.kind.label} {run.name_of_line(site.program)}"
        yield Label(RangeKind.WAIT, number, name, SYNC_COLOR)
    for number, name in enumerate(run.module_names):
        for passed, suffix in _PASSES.items():
            of = number * len(ModulePass) + passed
            yield Label(RangeKind.MODULE, of, name, MODULE_COLORS[passed], suffix)
    for kind, suffix in ((RangeKind.PHASE, ""), (RangeKind.OPEN_PHASE, _OPEN)):
        for path, name in enumerate(run.path_names.tolist()):
            yield Label(kind, path, run.names[name], colors[run.names[name]], suffix)
    for suffix in ("", _OPEN):
        yield Label(RangeKind.STEP, 0, "step", STEP_COLOR, suffix)
    for number, name in enumerate(run.metric_names):
        yield Label(RangeKind.METRIC, number, name, METRIC_COLOR)
    for number, one in enumerate(() if run.compilations is None else run.compilations.compilations):
        name = f"compile {one.function or 'a function'}"
        suffix = "" if one.kind == DYNAMO else f" ({one.kind})"
        yield Label(RangeKind.COMPILATION, number, name, COMPILATION_COLOR, suffix)
    for path, name in enumerate(() if run.graph_phases is None else run.path_names.tolist()):
        yield Label(RangeKind.GRAPH_PHASE, path, run.names[name], colors[run.names[name]])
    if len(run.loader_batches):
        yield Label(RangeKind.BATCH, 0, "batch", BATCH_COLOR)


class Colors(dict[str, int]):
    """Colours as 0xAARRGGBB by the names of phases; other names have that of their hash."""

    def __missing__(self, name: str) -> int:
        return color_of(name)


def colors_of(*runs: Run) -> Colors:
    """The colours of the phases of a run, or of several together."""
    names = {run.names[name] for run in runs for name in run.path_names.tolist()}
    wanted = {name: _wanted(name) for name in sorted(names)}
    taken = {place: name for name, place in reversed(wanted.items())}
    free = [place for place in range(len(COLORS)) if place not in taken]
    for name, place in wanted.items():
        if taken[place] != name and free:
            wanted[name] = free.pop(0)
    return Colors((name, COLORS[place]) for name, place in wanted.items())


def color_of(name: str) -> int:
    """The colour of a phase as 0xAARRGGBB where no other of its run has it."""
    return COLORS[_wanted(name)]


def _wanted(name: str) -> int:
    """Return the FNV-1a hash of the name in UTF-8."""
    value = 2166136261
    for byte in name.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % len(COLORS)
