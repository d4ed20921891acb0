# SPDX-License-Identifier: Apache-2.0
"""A comparison as the template sets it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from pyinstrument_gpu.analysis.compare import Comparison, PhaseChange, TimeChange
from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.core.phase_tree import MAX_PATHS
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistic import merge_known
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.palette import STEP_COLOR, color_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.page.histograms import plain_histograms
from pyinstrument_gpu.parts.parts import Part, Sentence, without_blanks
from pyinstrument_gpu.parts.words import duration, printable
from pyinstrument_gpu.report.comparison import comparison_parts

_MOST_ENDS = 10
_FLOW_WIDTH, _END_WIDTH, _MIDDLE = 860, 16, 430
_LABEL_CELLS = 30
"""As much of a name as has room beside its end; the innermost phase is at the end of it."""
_LEAST_SLOT, _GAP, _THICKEST = 30, 8, 200.0
"""An end has room for the two lines of its name; in the middle all together are so thick."""


@dataclass(frozen=True)
class Interval:
    """A change with its interval, as places on an axis in percent of its length."""

    name: str
    text: str
    middle: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RunDot:
    """The mean time of a run on one side, as a place on an axis in percent of its length."""

    text: str
    place: float


@dataclass(frozen=True)
class FlowEnd:
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


@dataclass(frozen=True)
class ComparisonView:
    """`intervals` have `zero` and the margin around it, `low_margin` to `high_margin`, as places on
    their axis; `dots` are those of each side, the first at `dots_from` and the last at `dots_to`.
    """

    comparison: Comparison
    parts: list[Part]
    intervals: tuple[Interval, ...]
    zero: float
    low_margin: float
    high_margin: float
    dots: tuple[tuple[str, tuple[RunDot, ...]], ...]
    dots_from: str
    dots_to: str
    flow: tuple[FlowEnd, ...]
    flow_height: float
    overlaid: tuple[Mapping[str, Any], ...]
    files: tuple[tuple[str, str, str], ...]


def comparison_view(
    comparison: Comparison,
    before: Sequence[Run],
    after: Sequence[Run],
    files: Sequence[str],
) -> ComparisonView:
    """The view of two sides; `files` are those of `before` and then of `after`."""
    margin = comparison.margin
    changes = {"elapsed": comparison.elapsed, "inside steps": comparison.inside}
    if comparison.without_uneven is not None:
        changes["elapsed, same loop"] = comparison.without_uneven
    ends = [end for change in changes.values() for end in (change.interval or ())]
    ends += [change.change for change in changes.values()]
    low, high = min(*ends, -margin, 0.0), max(*ends, margin, 0.0)
    reach = 1.1 * max(high - low, 1e-9)
    start = (low + high - reach) / 2

    def place(value: float) -> float:
        return 100 * (value - start) / reach

    flow, height = _flow(comparison)
    times_ns = [*comparison.elapsed.before_ns, *comparison.elapsed.after_ns]
    from_ns, to_ns = min(times_ns), max(times_ns)
    warnings = {f"! {warning}" for warning in comparison.warnings}  # these stand first
    sides = [("before", run) for run in before] + [("after", run) for run in after]
    return ComparisonView(
        comparison=comparison,
        parts=[
            part
            for part in without_blanks(comparison_parts(comparison))
            if not (isinstance(part, Sentence) and part.text in warnings)
        ],
        intervals=tuple(
            Interval(
                name,
                f"{100 * change.change:+.2f} %",
                place(change.change),
                None if change.interval is None else place(change.interval[0]),
                None if change.interval is None else place(change.interval[1]),
            )
            for name, change in changes.items()
        ),
        zero=place(0),
        low_margin=place(-margin),
        high_margin=place(margin),
        dots=tuple(_dots(comparison.elapsed, from_ns, to_ns)),
        dots_from=duration(from_ns),
        dots_to=duration(to_ns),
        flow=tuple(flow),
        flow_height=height,
        overlaid=tuple(_overlaid(comparison, before, after)),
        files=tuple(
            (side, file, str(run.environment.get("started", "")))
            for (side, run), file in zip(sides, files, strict=True)
        ),
    )


def _dots(
    elapsed: TimeChange, from_ns: float, to_ns: float
) -> Iterator[tuple[str, tuple[RunDot, ...]]]:
    reach = max(to_ns - from_ns, 1e-9)
    for name, side_ns in (("before", elapsed.before_ns), ("after", elapsed.after_ns)):
        yield name, tuple(RunDot(duration(ns), 4 + 92 * (ns - from_ns) / reach) for ns in side_ns)


def _flow(comparison: Comparison) -> tuple[list[FlowEnd], float]:
    """The ends on both sides, and how high the picture is. Both sides are as long: what was saved
    or came on top is an end, too."""
    significant = comparison.significant_phases
    left = _ends([phase for phase in significant if phase.change_ns < 0])
    right = _ends([phase for phase in significant if phase.change_ns > 0])
    if not left and not right:
        return [], 0.0
    net_ns = comparison.left_ns - comparison.arrived_ns
    if net_ns > 0:
        right.append(("saved", net_ns, "var(--good)"))
    elif net_ns < 0:
        left.append(("added", -net_ns, "var(--alarm)"))
    total_ns = sum(ns for _, ns, _ in left)
    scale = _THICKEST / total_ns
    height = max(_height(left, scale), _height(right, scale)) + 20
    top = (height - _THICKEST) / 2
    found = []
    for ends, is_left in ((left, True), (right, False)):
        y, inner = (height - _height(ends, scale)) / 2, top
        for name, ns, color in ends:
            thick = ns * scale
            outer = 250 + _END_WIDTH if is_left else _FLOW_WIDTH - 250 - _END_WIDTH
            top_of_bar = y + (_slot(thick) - thick) / 2
            found.append(
                FlowEnd(
                    name,
                    _label(name),
                    f"{_signs(name, is_left)}{duration(ns)} per step",
                    color,
                    is_left,
                    top_of_bar,
                    max(thick, 1.5),
                    _ribbon(outer, top_of_bar, _MIDDLE, inner, thick),
                )
            )
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


def _signs(name: str, is_left: bool) -> str:
    return {"saved": "", "added": "+"}.get(name, "-" if is_left else "+")


def _ends(phases: Sequence[PhaseChange]) -> list[tuple[str, float, str]]:
    """The largest changes by name, time and colour, and one for all others."""
    by_change = sorted(phases, key=lambda phase: -abs(phase.change_ns))
    ends = [
        (
            f"{phase.path}, outside steps" if phase.is_outside else phase.path,
            abs(phase.change_ns),
            css_color(color_of(names_of(phase.path)[-1])),
        )
        for phase in by_change[:_MOST_ENDS]
    ]
    others_ns = sum(abs(phase.change_ns) for phase in by_change[_MOST_ENDS:])
    return ends + ([("other phases", others_ns, css_color(STEP_COLOR))] if others_ns else [])


def _height(ends: Sequence[tuple[str, float, str]], scale: float) -> float:
    return sum(_slot(ns * scale) for _, ns, _ in ends)


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
