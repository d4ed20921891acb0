# SPDX-License-Identifier: Apache-2.0
"""What the ranges of a timeline are called, and how they look."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.palette import (
    METRIC_COLOR,
    MODULE_COLORS,
    STEP_COLOR,
    SYNC_COLOR,
    color_of,
)

_OPEN = " (open)"
_PASSES = {
    ModulePass.FORWARD: "",
    ModulePass.BACKWARD: " (backward)",
    ModulePass.RECOMPUTE: " (recompute)",
}


class Kind(enum.IntEnum):
    """What a range is. Of ranges with the same times that of the higher kind is the outer."""

    WAIT = 0
    MODULE = 1
    PHASE = 2
    OPEN_PHASE = 3
    STEP = 4
    METRIC = 5


class Label(NamedTuple):
    """What ranges are called.

    Attributes:
        kind: what they are.
        of: index of the site of a wait, the path of a phase or the name of a metric; of a module
            its index times the number of kinds of passes, plus that of the pass; of a step 0.
        name: their name. Of a step the number of the step follows.
        color: as 0xAARRGGBB.
        suffix: what stands behind the name, in parentheses, if anything does.
    """

    kind: Kind
    of: int
    name: str
    color: int
    suffix: str = ""


def labels_of(run: Run) -> tuple[Label, ...]:
    """The labels of all ranges that a run can have, by kind and then by what they are of."""
    return tuple(_labels(run))


def _labels(run: Run) -> Iterator[Label]:
    for number, site in enumerate(run.syncs.sites):
        name = f"wait: {site.kind.label} {run.name_of_line(site.program)}"
        yield Label(Kind.WAIT, number, name, SYNC_COLOR)
    for number, name in enumerate(run.module_names):
        for passed, suffix in _PASSES.items():
            of = number * len(ModulePass) + passed
            yield Label(Kind.MODULE, of, name, MODULE_COLORS[passed], suffix)
    colors = [color_of(name) for name in run.names]
    for kind, suffix in ((Kind.PHASE, ""), (Kind.OPEN_PHASE, _OPEN)):
        for path, name in enumerate(run.path_names.tolist()):
            yield Label(kind, path, run.names[name], colors[name], suffix)
    for suffix in ("", _OPEN):
        yield Label(Kind.STEP, 0, "step", STEP_COLOR, suffix)
    for number, name in enumerate(run.metric_names):
        yield Label(Kind.METRIC, number, name, METRIC_COLOR)
