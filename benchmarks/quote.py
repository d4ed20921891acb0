# SPDX-License-Identifier: Apache-2.0
"""What README.md quotes of the results, between two marks; written by program, never by hand."""

from __future__ import annotations

import re
import textwrap

from benchmarks import peers, titles
from benchmarks.board import Board, duration
from benchmarks.page import table
from benchmarks.row import Row, StepRow

_WIDTH = 120
_BLOCK = re.compile(r"<!-- cost: (?P<results>\S+) -->\n.*?<!-- /cost -->", re.DOTALL)

_NAMES = {
    peers.OURS.name: '`with gpu_phase("x"): pass`, recorded',
    peers.OURS_BY_HANDLE.name: "the same with a handle that is kept",
    peers.OURS_NOT_RECORDING.name: "the same, not recording",
    peers.C_LOOP.name: "the hot path in a loop of C",
    peers.NULLCONTEXT.name: "`contextlib.nullcontext`, reused",
    "@contextmanager, empty": "an empty `@contextmanager`",
    "nvtx.annotate, new": "`nvtx.annotate`, no tool attached",
    peers.RECORD_FUNCTION.name: "`torch.profiler.record_function`, profiler off",
    peers.TRACEML.name: "TraceML `timed_region`",
    peers.RESILIENCY.name: "nvidia-resiliency-ext section",
}


def results_of(readme: str) -> str:
    """The path of the results that a text quotes.

    Raises:
        ValueError: it has no such marks.
    """
    found = _BLOCK.search(readme)
    if found is None:
        raise ValueError("there is no `<!-- cost: RESULTS -->` ... `<!-- /cost -->` in it")
    return found["results"]


def quoted(readme: str, board: Board, results: str) -> str:
    """The text with its quotation replaced.

    Args:
        results: the path of the results, from where the text lies.

    Raises:
        ValueError: it has no marks.
    """
    results_of(readme)
    block = f"<!-- cost: {results} -->\n{quotation(board, results)}\n<!-- /cost -->"
    return _BLOCK.sub(lambda _: block, readme)


def quotation(board: Board, results: str) -> str:
    """What stands between the marks."""
    stem = results.removesuffix(".json")
    machine = board.machine
    phase = _rows(board, titles.PHASE)
    null = phase[peers.NULLCONTEXT.name]
    lines = list(
        table(
            ("one use, the empty loop taken off", "best, ns", "median, ns", "x `nullcontext`"),
            (_cells(name, phase[label], null) for label, name in _NAMES.items()),
            3,
        )
    )
    harvested = _ours(board, titles.WITH_HARVESTER)
    cold = _rows(board, titles.COLD)
    how = (
        f"`make bench` on {machine['date']}, pinned to one core ({machine['cpu']}), Python "
        f"{machine['python']}, torch {machine['torch']}; the last column is of the best rounds "
        f"([every peer, every group, and the goals]({stem}.md)). The harvester, which takes the "
        "spans out of the ring, works on another core; on the same core a recorded phase costs "
        f"{_time(harvested.best_ns)}. With cold caches (48 MB of other memory touched before each "
        f"use) the median is {_time(cold[peers.OURS.name].median_ns)}, that of a `nullcontext` "
        f"{_time(cold[peers.NULLCONTEXT.name].median_ns)}."
    )
    lines += ["", *wrap(how, _WIDTH), ""]
    for title, rows in board.steps.items():
        lines += wrap(_step(title, rows), _WIDTH, subsequent_indent="  ")
    lines += ["", f"![What a phase and a training step cost, beside the peers]({stem}.png)"]
    return "\n".join(lines)


def wrap(text: str, width: int, subsequent_indent: str = "") -> list[str]:
    """Its lines. A link stays whole."""
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=subsequent_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _rows(board: Board, title: str) -> dict[str, Row]:
    return {row.label: row for row in board.races[title]}


def _ours(board: Board, title: str) -> Row:
    return board.races[title][0]


def _cells(name: str, row: Row, null: Row) -> tuple[str, str, str, str]:
    if row.best_ns is None or row.median_ns is None:
        return f"{name} (missing: {row.missing})", "", "", ""
    ratio = "" if null.best_ns is None else f"{row.best_ns / null.best_ns:.2g}"
    return name, f"{row.best_ns:,.0f}", f"{row.median_ns:,.0f}", ratio


def _time(ns: float | None) -> str:
    return "not known" if ns is None else duration(ns)


def _step(title: str, rows: list[StepRow]) -> str:
    by_label = {row.label: row for row in rows}
    untimed, ours = by_label[titles.UNTIMED], by_label[peers.OURS.name]
    floor = by_label[titles.UNTIMED_AGAIN]
    name = title.partition(":")[2].strip()
    return (
        f"* A training step of {name} ({_time(untimed.step_ns)}) with {ours.marks} phases: "
        f"{_difference(ours)}; of two blocks without any: {_difference(floor)}."
    )


def _difference(row: StepRow) -> str:
    if row.difference is None or row.low is None or row.high is None:
        return "not measured"
    return (
        f"{100 * row.difference:+.2f} % ({100 * row.low:+.2f} to {100 * row.high:+.2f} %, "
        "95 % interval)"
    )
