# SPDX-License-Identifier: Apache-2.0
"""The part of the report that enters each step twice: for the host, and for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.ledger import DEVICE_COLUMNS, Ledger
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.phase_tree import tree
from pyinstrument_gpu.report.table import MAX_PATHS, UNKNOWN, Row, Unit, counted, table, unshown

_WIDTH_FOR_WORDS = 100
_SIDES = ("phase", "computing", "blocked", "| busy")
_WIDE_HEADERS = (*_SIDES, "data wait", "host blocked", "host late", "unattributed")
_HEADERS = (*_SIDES, "data", "sync", "late", "rest")
_SHORT = "data: data wait, sync: host blocked, late: host late, rest: unattributed"
_LEGEND = (
    "host: own time, without phases inside. blocked: in a call that waits for the device",
    "device: what the stream did meanwhile, by the phase in which its work was enqueued. Idle as "
    "far as events prove it, by cause; unattributed: busy or idle, events can't tell",
)


def ledger_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The ledger as means per step; nothing where neither the device was timed nor syncs priced,
    as it would say no more than the table of phases."""
    if not (run.span_device_ns >= 0).any() and not run.syncs.are_priced:
        return
    found = analysis.of(run).ledger
    if not len(found.entries):
        return
    entries, steps = _comparable(found)
    means = _means(entries, len(steps))
    whole_ns = sum(row[0] for row in means.values())
    unit = Unit.fitting(whole_ns)
    rows = []
    paths = tree(run, [path for path in means if path >= 0])
    for path, depth in paths[:MAX_PATHS]:
        name = run.names[run.path_names[path]]
        if path in means:
            rows.append(Row(name, _cells(means[path], unit), depth))
        else:
            rows.append(Row(name, [""] * (len(_HEADERS) - 1), depth, style="dim"))
    outside = [Row("outside phases", _cells(means[-1], unit))] if -1 in means else []
    total = Row("step", _cells(_sum(list(means.values())), unit), style="bold")
    yield Text()
    yield Text(f"Ledger: {unit.name} per step, the host's side | the device's side", "bold")
    wide = width >= _WIDTH_FOR_WORDS
    yield table(_WIDE_HEADERS if wide else _HEADERS, [rows, [*outside, total]], width)
    yield from unshown(paths)
    yield Text(
        f"Each side adds up to the step, {unit.text(whole_ns)} {unit.name} over "
        f"{counted(len(steps), 'step')}"
    )
    for line in _LEGEND if wide else (*_LEGEND, _SHORT):
        yield Text(line, "dim")
    if (entries["blocked_ns"] < 0).any():
        yield Text("?: computing and blocked, as waits of the host were not watched", "dim")


def _comparable(found: Ledger) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The entries of the steps of which most is known, so that both sides are of the same steps."""
    entries = found.entries
    if found.is_timed.any():
        entries = entries[found.is_timed]
    if (entries["blocked_ns"] >= 0).any():
        entries = entries[entries["blocked_ns"] >= 0]
    return entries, np.unique(entries["step"])


_Means = tuple[float, ...]
"""Host, computing, blocked, then the device's columns; -1 unknown."""


def _means(entries: NDArray[np.void], steps: int) -> dict[int, _Means]:
    means = {}
    for path in np.unique(entries["path"]).tolist():
        of_path = entries[entries["path"] == path]

        def mean(column: str, rows: NDArray[np.void] = of_path) -> float:
            return -1 if (rows[column] < 0).any() else int(rows[column].sum()) / steps

        host, blocked = mean("host_ns"), mean("blocked_ns")
        computing = -1 if blocked < 0 else host - blocked
        means[path] = (host, computing, blocked, *(mean(column) for column in DEVICE_COLUMNS))
    return means


def _sum(rows: Sequence[_Means]) -> _Means:
    return tuple(-1 if min(column) < 0 else sum(column) for column in zip(*rows, strict=True))


def _cells(means: _Means, unit: Unit) -> list[str]:
    host, computing, *others = means
    first = f"{unit.text(host)}?" if computing < 0 else unit.text(computing)
    return [first, *(UNKNOWN if ns < 0 else unit.text(ns) for ns in others)]
