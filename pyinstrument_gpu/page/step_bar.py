# SPDX-License-Identifier: Apache-2.0
"""A step as stacked bars: what the host did in it, and what the device did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyinstrument_gpu.core.paths import names_of
from pyinstrument_gpu.export.labels import STEP_COLOR, Colors
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.parts.words import duration
from pyinstrument_gpu.report.document import Document

_MAX_PIECES = 30
_COLOR_OF_REST = "var(--panel)"
_OVERFULL = 1.05
"""Phases that add up to more than that of their step, as those of tasks do, are no parts of it."""
_IDLE = (
    ("data_wait_ns", "idle: the host waits for data", "pattern-data"),
    ("sync_wait_ns", "idle: the host was blocked", "pattern-blocked"),
    ("host_wait_ns", "idle: the host is late", "pattern-late"),
    ("unknown_ns", "busy or idle: events can't tell", "pattern-unknown"),
)


class Piece(NamedTuple):
    """A part of a stacked bar: its share of the whole, and how it looks."""

    name: str
    share: float
    text: str
    color: str = ""
    pattern: str = ""


def step_bars(document: Document, colors: Colors) -> dict[str, list[Piece]]:
    """The bars by whose they are: that of the host and, if it was timed, that of the device. They
    stand for the same time. None where there are no steps, or their phases overlap.

    Args:
        colors: of the phases, by name.
    """
    time_budget, steps = document.time_budget, document.steps
    if steps is None or document.run.is_preview:
        return {}
    waits = time_budget is not None and (
        time_budget.total.busy_ns is not None or time_budget.total.blocked_ns
    )
    if time_budget is None or not time_budget.step_ns or not waits:  # as the table of phases has it
        own_ns: dict[str | None, float] = {
            phase.path: phase.self_ns or 0.0 for phase in document.phases
        }
        own_ns[None] = (steps.outside_phases_ns or 0.0) / steps.count
        pieces = [*_of_phases("", colors, own_ns, steps.mean_ns)]
        is_whole = steps.mean_ns and sum(piece.share for piece in pieces) <= _OVERFULL
        return {"host": pieces} if is_whole and pieces else {}
    total, whole_ns = time_budget.total, time_budget.step_ns
    host_ns = {
        one.path: (one.host_ns if one.computing_ns is None else one.computing_ns) or 0.0
        for one in time_budget.entries
    }
    blocked = _piece("waiting for the device", total.blocked_ns, whole_ns, "", "pattern-blocked")
    found = {"host": [*_of_phases("", colors, host_ns, whole_ns), *blocked]}
    if total.busy_ns is not None:
        busy = "busy: " if time_budget.doubt is None else "busy or waiting: "
        busy_ns = {one.path: one.busy_ns or 0.0 for one in time_budget.entries}
        found["device"] = [*_of_phases(busy, colors, busy_ns, whole_ns)]
        for column, name, pattern in _IDLE:
            found["device"] += _piece(name, getattr(total, column), whole_ns, "", pattern)
    return found


def _piece(
    name: str, ns: float | None, whole_ns: float, color: str, pattern: str = ""
) -> list[Piece]:
    if not ns or not whole_ns:
        return []
    text = f"{name}: {duration(ns)}, {100 * ns / whole_ns:.1f} %"
    return [Piece(name, ns / whole_ns, text, color, pattern)]


def _of_phases(
    prefix: str, colors: Colors, times_ns: dict[str | None, float], whole_ns: float
) -> Iterator[Piece]:
    """The largest phases by their paths, of which None is the time outside of them, and one piece
    for all others."""
    largest = {*sorted(times_ns, key=lambda path: -times_ns[path])[:_MAX_PIECES]}
    for path, ns in times_ns.items():
        if path in largest:
            color = _COLOR_OF_REST if path is None else css_color(colors[names_of(path)[-1]])
            yield from _piece(prefix + (path or "outside phases"), ns, whole_ns, color)
    rest_ns = sum(ns for path, ns in times_ns.items() if path not in largest)
    yield from _piece(f"{prefix}other phases", rest_ns, whole_ns, css_color(STEP_COLOR))
