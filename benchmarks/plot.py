# SPDX-License-Identifier: Apache-2.0
"""Results as a picture: what one use costs, and what it makes of a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import peers, titles
from benchmarks.board import Board
from benchmarks.row import StepRow
from pyinstrument_gpu.errors import MissingDependencyError

_OURS = "#0072b2"
_OTHERS = "#7a7a7a"
_FLOOR = "#e8e8e8"
_MARKERS = ("o", "s", "D")
_OUR_LABELS = {peer.name for peer in peers.PEERS if peer.is_ours}
_LEAST_NS = 1.0
"""Below that a difference of two times is no time."""


def draw(board: Board, path: Path) -> None:
    """Write the picture.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "the plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from error
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    _uses(left, board)
    _steps(right, board)
    machine = board.machine
    figure.suptitle(
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"torch {machine['torch']}, {machine['date']}, commit {machine['commit']}",
        fontsize=9,
        color="#505050",
    )
    figure.savefig(path, dpi=130)


def _uses(axes: Any, board: Board) -> None:
    cold = {row.label: row.median_ns for row in board.races.get(titles.COLD, [])}
    known = [
        (row.label, row.best_ns, row.median_ns)
        for row in board.races[titles.PHASE]
        if row.best_ns is not None
        and row.median_ns is not None
        and row.label != peers.EMPTY_LOOP.name
    ]
    known.sort(key=lambda each: -each[2])
    for y, (label, best_ns, median_ns) in enumerate(known):
        color = _OURS if label in _OUR_LABELS else _OTHERS
        axes.plot([best_ns, median_ns], [y, y], color=color, lw=2, zorder=2)
        axes.plot(median_ns, y, "o", color=color, ms=7, zorder=3)
        cold_ns = cold.get(label)
        if cold_ns is not None and cold_ns >= _LEAST_NS:
            axes.plot(cold_ns, y, "o", mfc="white", mec=color, ms=7, zorder=3)
        axes.annotate(
            f"{median_ns:,.0f}",
            (min(best_ns, median_ns), y),
            xytext=(-9, 0),
            textcoords="offset points",
            va="center",
            ha="right",
            fontsize=8,
            color=color,
        )
    axes.plot([], [], "o", color=_OTHERS, label="warm: median (line: to the best round)")
    axes.plot([], [], "o", mfc="white", mec=_OTHERS, label="cold caches: median")
    axes.set_xscale("log")
    axes.set_xlim(6, None)
    _name_rows(axes, [label for label, _, _ in known])
    axes.set_xlabel("ns per use, the empty loop taken off")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("One use", loc="left", fontweight="bold")
    axes.grid(axis="x", color="#e0e0e0", zorder=0)
    _legend(axes, ncols=2)


def _steps(axes: Any, board: Board) -> None:
    tables = {
        title: {row.label: row for row in rows if row.difference is not None}
        for title, rows in board.steps.items()
    }
    labels = [label for label in dict.fromkeys(row for rows in tables.values() for row in rows)]
    labels.sort(key=lambda label: (label != titles.UNTIMED_AGAIN, label not in _OUR_LABELS))
    labels.reverse()
    gap = 0.24
    for number, (title, rows) in enumerate(tables.items()):
        offset = gap * (len(tables) / 2 - 0.5 - number)
        marker = _MARKERS[number % len(_MARKERS)]
        for y, label in enumerate(labels):
            row = rows.get(label)
            if row is not None:
                _difference(axes, row, y + offset, marker)
        axes.plot([], [], marker, color=_OTHERS, label=title.partition(":")[2].strip())
    floors = [rows[titles.UNTIMED_AGAIN] for rows in tables.values()]
    low = min(row.low for row in floors if row.low is not None)
    high = max(row.high for row in floors if row.high is not None)
    axes.axvspan(100 * low, 100 * high, color=_FLOOR, zorder=0)
    axes.axvline(0, color="#404040", lw=1, zorder=1.5)
    _name_rows(axes, labels)
    axes.set_xlabel("% of the untimed step, 95 % intervals; grey: the floor")
    axes.set_title("A training step with its phases marked", loc="left", fontweight="bold")
    axes.grid(axis="x", color="#e0e0e0", zorder=0)
    _legend(axes, ncols=3)


def _difference(axes: Any, row: StepRow, y: float, marker: str) -> None:
    assert row.difference is not None and row.low is not None and row.high is not None
    color = _OURS if row.label in _OUR_LABELS else _OTHERS
    axes.plot([100 * row.low, 100 * row.high], [y, y], color=color, lw=1.5, zorder=2)
    axes.plot(100 * row.difference, y, marker, color=color, ms=5, zorder=3)


def _name_rows(axes: Any, labels: list[str]) -> None:
    shown = [label.partition(", as DeepSpeed")[0] for label in labels]
    axes.set_yticks(range(len(labels)), shown)
    for tick, label in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_fontsize(9)
        if label in _OUR_LABELS:
            tick.set_color(_OURS)
            tick.set_fontweight("bold")
    axes.set_ylim(-0.7, len(labels) - 0.3)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(axes: Any, ncols: int) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.4, -0.11),
        ncols=ncols,
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        handletextpad=0.3,
    )
