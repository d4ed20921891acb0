# SPDX-License-Identifier: Apache-2.0
"""The watch on the workers of DataLoaders while a recording goes on, which puts together what they
have written."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyinstrument_gpu.aspects.loader import MOST_BATCHES, MOST_LOADERS, MOST_LONG, MOST_NODES, NAME
from pyinstrument_gpu.aspects.loader.worker import WorkerLoop
from pyinstrument_gpu.aspects.loader.worker_table import WorkerTable
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.patching.import_hook import when_imported

_MODULE = "torch.utils.data._utils.worker"
_LOOP = "_worker_loop"
_HUNG, _HUNG_NS = 3, 2_000_000_000
"""A batch hangs that takes longer than so many times the worker's longest, and than this."""
_SUMS = (
    *("batches", "making_ns", "waiting_ns", "cpu_ns", "other_cpu_ns"),
    *("queued_ns", "read_bytes", "minor_faults", "major_faults"),
)


class LoaderWatch(Watcher):
    """The watch on workers while one recording goes on.

    Args:
        table: that workers write to; None for a new one, once there can be workers.
    """

    name = NAME

    def __init__(self, table: WorkerTable | None = None) -> None:
        self._table = table
        self._loop: WorkerLoop | None = None
        self._undo: Callable[[], None] | None = None

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self._undo = when_imported(_MODULE, self._install)

    def end(self) -> None:
        super().end()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        loop, self._loop = self._loop, None
        if loop is not None:
            module = sys.modules.get(_MODULE)
            is_in_place = getattr(module, _LOOP, None) is loop
            if is_in_place:
                setattr(module, _LOOP, loop.original)
        table, self._table = self._table, None
        if table is not None:
            table.close()

    def program_is(self, facts: Mapping[str, Any]) -> None:
        """Write the document early, for readers that follow, and if the program is killed."""
        with suppress(Exception):
            self.write()

    def stalled(self) -> None:
        with suppress(Exception):
            self.write()

    def stall_facts(self) -> tuple[dict[str, Any], str]:
        loaders = (self.document() or {"loaders": ()})["loaders"]
        return {}, "".join(
            f"; worker {one['worker']} of the loader of {loader['dataset']} (process "
            f"{one['process']}) was asked for batch {one['number']} {one['for_ns'] / 1e9:.0f} s ago"
            for loader in loaders
            for one in loader["hung"]
        )

    def document(self) -> dict[str, Any] | None:
        table = self._table
        loaders = [] if table is None else together(table.read())
        return {"loaders": loaders} if loaders else None

    def _install(self) -> None:
        module: Any = sys.modules[_MODULE]
        original = getattr(module, _LOOP, None)
        with suppress(OSError):
            if self._table is None:
                self._table = WorkerTable()
            self._loop = WorkerLoop(self._table, original, os.getpid())
            setattr(module, _LOOP, self._loop)


def together(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge what workers have written, by loader: the one with most batches first."""
    loaders: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for one in found:
        loaders.setdefault((one["dataset"], one["workers"], one["address"]), []).append(one)
    made = [_loader(ones) for ones in loaders.values()]
    made.sort(key=lambda one: -sum(row["batches"] for row in one["rows"]))
    return made[:MOST_LOADERS]


def _loader(found: list[dict[str, Any]]) -> dict[str, Any]:
    rows: dict[int, dict[str, Any]] = {}
    epochs: dict[int, int] = {}
    hung: list[dict[str, int]] = []
    for one in found:
        epochs[one["iterator"]] = max(one["epochs"], epochs.get(one["iterator"], 0))
        number, since_ns = one["open"]
        for_ns = time.perf_counter_ns() - since_ns if since_ns else 0
        if for_ns > max(_HUNG_NS, _HUNG * one["longest_ns"]):
            batch = {"worker": one["worker"], "process": one["process"]}
            hung.append({**batch, "number": number, "for_ns": for_ns})
        row = rows.setdefault(
            one["worker"],
            {
                "worker": one["worker"],
                "processes": 0,
                "starting_ns": 0,
                "longest_ns": 0,
                **dict.fromkeys(_SUMS, 0),
            },
        )
        row["processes"] += 1
        row["longest_ns"] = max(row["longest_ns"], one["longest_ns"])
        if one["grown_bytes"] is not None:
            row["grown_bytes"] = max(row.get("grown_bytes") or 0, one["grown_bytes"])
        if one["ready_ns"] is not None:
            row["starting_ns"] += one["ready_ns"] - one["began_ns"]
        for name in _SUMS:
            value = one[name]
            row[name] = None if value is None or row[name] is None else row[name] + value
    newest = max(found, key=lambda one: int(one["began_ns"]))["iterator"]
    batches = sorted(
        (number, one["worker"], begin_ns, end_ns)
        for one in found
        if one["iterator"] == newest
        for number, begin_ns, end_ns in one["newest"]
    )
    return {
        "dataset": found[0]["dataset"],
        "workers": found[0]["workers"],
        "iterators": sum(epochs.values()),
        "rows": [rows[worker] for worker in sorted(rows)],
        "batches": batches[-MOST_BATCHES:],
        "hung": hung,
        "largest": next((one["largest"] for one in found if one.get("largest")), None),
        **_one_tree([(one["worker"], one["stacks"]) for one in found if one["stacks"] is not None]),
    }


def _one_tree(trees: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """The sum of trees, without those nodes for which there is no room."""
    functions: dict[tuple[str, str], int] = {}
    places: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[int, int], int] = {}
    nodes: list[list[int]] = []
    long: list[tuple[int, int, int, list[tuple[int, int]]]] = []
    samples = unknown_ns = 0
    for worker, tree in trees:
        samples += tree["samples"]
        unknown_ns += tree["unknown_ns"]
        own: list[int] = []
        for parent, place, time_ns in tree["nodes"]:
            function, line = tree["places"][place]
            file, name = tree["functions"][function]
            where = functions.setdefault((file, name), len(functions))
            key = (
                own[parent] if parent >= 0 else -1,
                places.setdefault((where, line), len(places)),
            )
            if key not in numbers and len(nodes) == MOST_NODES:
                own.append(key[0])  # it counts for the one around it
            else:
                if key not in numbers:
                    numbers[key] = len(nodes)
                    nodes.append([*key, 0])
                own.append(numbers[key])
            if own[-1] >= 0:
                nodes[own[-1]][2] += time_ns
            else:
                unknown_ns += time_ns
        for begin_ns, end_ns, lines in tree["long"]:
            kept = [(own[node], time_ns) for node, time_ns in lines if own[node] >= 0]
            long.append((worker, begin_ns, end_ns, kept))
    return {
        "functions": list(functions),
        "places": list(places),
        "nodes": nodes,
        "long": sorted(long, key=lambda one: one[2])[-MOST_LONG:],
        "samples": samples,
        "unknown_ns": unknown_ns,
    }


def watcher(options: object) -> Watcher:
    return LoaderWatch()
