# SPDX-License-Identifier: Apache-2.0
"""A comparison as the template sets it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len

from pyinstrument_gpu.analysis.compare import Comparison, PhaseChange, TimeChange
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope, merge_known
from pyinstrument_gpu.export.labels import STEP_COLOR, Colors, colors_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.page.histograms import plain_histograms
from pyinstrument_gpu.parts.parts import Sentence, Table, without_blanks
from pyinstrument_gpu.parts.words import duration, printable
from pyinstrument_gpu.report.comparison import comparison_parts, difference_parts, unmoved

_MOST_ENDS = 10
_MIDDLE = 430
_LABEL_CELLS = 30
"""As much of a name as has room beside its end; the innermost phase is at the end of it."""
_LEAST_SLOT, _GAP, _THICKEST = 30, 8, 200.0
"""An end has room for the two lines of its name; in the middle all together are so thick."""


class FlowEnd(NamedTuple):
    """An end of the flow: a phase that lost time, on the left, or got some, on the right.

    Attributes:
        label: as much of the name as has room, from its end.
        y, height: of its bar.
        ribbon: the path of what flows between it and the middle.
    """

    name: str
    label: str
    text: str
    color: str
    is_left: bool
    y: float
    height: float
    ribbon: str


def comparison_view(
    comparison: Comparison,
    before: Sequence[Run],
    after: Sequence[Run],
    files: Sequence[str],
) -> dict[str, Any]:
    """Two sides for the template; `files` are those of `before` and then of `after`."""
    warnings = {f"! {warning}" for warning in comparison.warnings}  # the template has these
    parts = [
        part
        for part in without_blanks(comparison_parts(comparison))
        if not (isinstance(part, Sentence) and part.text in warnings)
    ]
    table = next(place for place, part in enumerate(parts) if isinstance(part, Table))
    flow, height = _flow(comparison, colors_of(*before, *after))
    sides = [("before", run) for run in before] + [("after", run) for run in after]
    return {
        "comparison": comparison,
        "differences": difference_parts(comparison.differences),
        "verdict": parts[:table],
        "tables": parts[table:],
        **_intervals(comparison),
        **_dots(comparison.elapsed),
        "flow": flow,
        "flow_height": height,
        "unmoved": unmoved(comparison),
        "overlaid": [*_overlaid(comparison, before, after)],
        "files": [
            (side, file, str(run.environment.get("started", "")))
            for (side, run), file in zip(sides, files, strict=True)
        ],
    }


def _intervals(comparison: Comparison) -> dict[str, Any]:
    """The changes with their intervals, no change, and the margin around it, as places on an axis
    of 500 units."""
    changes = {"elapsed": comparison.elapsed, "inside steps": comparison.inside}
    if comparison.without_uneven is not None:
        changes["elapsed, same loop"] = comparison.without_uneven
    margin = comparison.margin
    ends = [end for change in changes.values() for end in (change.interval or ())]
    ends += [-margin, 0.0, margin, *(change.change for change in changes.values())]
    reach = 1.1 * max(max(ends) - min(ends), 1e-9)
    start = (min(ends) + max(ends) - reach) / 2

    def place(value: float) -> float:
        return 500 * (value - start) / reach

    return {
        "intervals": [
            (
                name,
                f"{100 * one.change:+.2f} %",
                place(one.change),
                [*map(place, one.interval or ())],
            )
            for name, one in changes.items()
        ],
        "zero": place(0),
        "margin": (place(-margin), place(margin)),
    }


def _dots(elapsed: TimeChange) -> dict[str, Any]:
    """The times of runs as dots on an axis, each with its place in percent of the length."""
    sides = {"before": elapsed.before_ns, "after": elapsed.after_ns}
    times_ns = [ns for side in sides.values() for ns in side]
    from_ns, to_ns = min(times_ns), max(times_ns)
    reach = max(to_ns - from_ns, 1e-9)
    return {
        "dots": {
            name: [(duration(ns), 4 + 92 * (ns - from_ns) / reach) for ns in side]
            for name, side in sides.items()
        },
        "dots_from": duration(from_ns),
        "dots_to": duration(to_ns),
    }


def _flow(comparison: Comparison, colors: Colors) -> tuple[list[FlowEnd], float]:
    """The ends on both sides, and how high the picture is. Both sides are as long: what was saved
    or came on top is an end, too."""
    significant = comparison.significant_phases
    left = _ends([phase for phase in significant if phase.change_ns < 0], "-", colors)
    right = _ends([phase for phase in significant if phase.change_ns > 0], "+", colors)
    if not left and not right:
        return [], 0.0
    net_ns = comparison.left_ns - comparison.arrived_ns
    if net_ns > 0:
        right.append(("saved", net_ns, "", "var(--good)"))
    elif net_ns < 0:
        left.append(("added", -net_ns, "+", "var(--alarm)"))
    scale = _THICKEST / sum(ns for _, ns, *_ in left)
    heights = [sum(_slot(ns * scale) for _, ns, *_ in ends) for ends in (left, right)]
    height = max(heights) + 20
    found = []
    for ends, ends_height, outer in ((left, heights[0], 266), (right, heights[1], 594)):
        y, inner = (height - ends_height) / 2, (height - _THICKEST) / 2
        for name, ns, sign, color in ends:
            thick = ns * scale
            top = y + (_slot(thick) - thick) / 2
            text = f"{sign}{duration(ns)} per step"
            ribbon = _ribbon(outer, top, _MIDDLE, inner, thick)
            bar = top, max(thick, 1.5)
            found.append(FlowEnd(name, _label(name), text, color, ends is left, *bar, ribbon))
            y += _slot(thick)
            inner += thick
    return found, height


def _label(name: str) -> str:
    """The end of a name, as it is printed."""
    printed = printable(name)
    if cell_len(printed) <= _LABEL_CELLS:
        return printed
    while cell_len(printed) >= _LABEL_CELLS:
        printed = printed[1:]
    return "…" + printed


def _ends(
    phases: Sequence[PhaseChange], sign: str, colors: Colors
) -> list[tuple[str, float, str, str]]:
    """The largest changes by name, time, sign and colour, and one for all others."""
    by_change = sorted(phases, key=lambda phase: -abs(phase.change_ns))
    ends = [
        (
            f"{phase.path}, outside steps" if phase.is_outside else phase.path,
            abs(phase.change_ns),
            sign,
            css_color(colors[names_of(phase.path)[-1]]),
        )
        for phase in by_change[:_MOST_ENDS]
    ]
    others_ns = sum(abs(phase.change_ns) for phase in by_change[_MOST_ENDS:])
    return ends + ([("other phases", others_ns, sign, css_color(STEP_COLOR))] if others_ns else [])


def _slot(thick: float) -> float:
    return max(thick, _LEAST_SLOT) + _GAP


def _ribbon(x0: float, y0: float, x1: float, y1: float, thick: float) -> str:
    """A band from one place to the other, of the same thickness at both ends."""
    middle = (x0 + x1) / 2
    return (
        f"M{x0:.1f},{y0:.1f}C{middle:.1f},{y0:.1f} {middle:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
        f"V{y1 + thick:.1f}"
        f"C{middle:.1f},{y1 + thick:.1f} {middle:.1f},{y0 + thick:.1f} {x0:.1f},{y0 + thick:.1f}Z"
    )


def _overlaid(
    comparison: Comparison, before: Sequence[Run], after: Sequence[Run]
) -> Iterator[Mapping[str, Any]]:
    """The distributions of both sides: of steps, and then of phases, the largest change first."""
    durations = [
        merge_known([run.step_totals.duration for run in side]) for side in (before, after)
    ]
    phases = [
        [{path: phase.host for path, phase in run.phases_in(Scope.STEP).items()} for run in side]
        for side in (before, after)
    ]
    paths = [phase.path for phase in comparison.phases if not phase.is_outside]
    of_phases = (
        (path, [merge_known([of_run.get(path) for of_run in side]) for side in phases])
        for path in paths[:MAX_PATHS]
    )
    for label, sides in [("steps", durations), *of_phases]:
        found = plain_histograms(label, dict(zip(("before", "after"), sides, strict=True)))
        if found["of"]:
            yield found
