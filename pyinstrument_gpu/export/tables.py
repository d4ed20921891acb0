# SPDX-License-Identifier: Apache-2.0
"""The tables of a run, some rows at a time: what CSV and Parquet are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import phases_ns
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.aspects.throughput.utilization import utilization
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of, places_in
from pyinstrument_gpu.core.paths import labels_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.phases_by_step import known_steps, matrix, phases_by_step
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.runs import offsets_ns_of, ranks_of
from pyinstrument_gpu.sinks.phase_times import PHASE_TIME_DTYPE

MAX_PATHS = 64
"""The paths that have columns of their own in the table of steps. Later ones share one."""

_PART_ROWS = 1 << 17

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns")

# The columns of `SPAN_DTYPE`, with names for the numbers of phases and paths, and beside those of
# threads and streams; and the exact device time.
_SPANS = (
    *("phase", "path", "step", "depth", "thread", "thread_name"),
    *("device", "stream", "stream_name", *_TIMES, "device_ns", "blocked_ns", "flags"),
)
# The same of `MODULE_SPAN_DTYPE`.
_MODULES = (
    *("module", "kind", "path", "step", "depth", "thread", "thread_name"),
    *("stream", "stream_name", *_TIMES),
)
_NUMBERS_OF_NAMES = {"thread_name": "thread", "stream_name": "stream"}

_MEASURES = ("host", "self_host", "device", "blocked")
_NUMBERS = {
    **dict.fromkeys(("count", "total_ns"), np.int64),
    **dict.fromkeys(("mean_ns", "std_ns"), np.float64),
    **dict.fromkeys(("min_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns"), np.int64),
}
# Sums of a file that was tampered with may be beyond all columns of numbers: they are missing.
_LIMIT = 1 << 63


@dataclass(frozen=True)
class TableColumn:
    """A part of the rows of a column.

    Attributes:
        values: integers or floats.
        texts: where it is one of text, what its values stand for; the same of all parts of a
            run.
        gaps: which values are missing; None where those below 0 are.
        decimals: how many a float has where it is text; None for all that it takes.
    """

    values: NDArray[Any]
    texts: Sequence[str] | None = None
    gaps: NDArray[np.bool_] | None = None
    decimals: int | None = None

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        missing: NDArray[np.bool_] = self.values < 0 if self.gaps is None else self.gaps
        return missing


TablePart: TypeAlias = Mapping[str, TableColumn]
"""Rows: the columns of a table by name, in their order."""

RunTable: TypeAlias = Callable[[Run, int], Iterator[TablePart]]
"""Of a run the rows, in parts of the same columns; at least one, without rows if there are none.
Times are on the axis that begins so many ns before the run."""


def tables_of(
    runs: Sequence[Run], advance: Callable[[int], None], **asked: bool
) -> Iterator[tuple[Run, int, Iterator[TablePart]]]:
    """Yield each run with its rank and the rows of the table that is asked for. The tables of all
    runs have the same columns. To be read one after the other.

    Args:
        advance: called with a number of spans whenever so many more are done with.
        asked: by the names of `OPTIONS`.

    Raises:
        ExportError: more than one table is asked for; or there are several runs, the table has
            times, and one run does not know when it began.
    """
    names = [name for name in OPTIONS if asked.get(name)]
    if len(names) > 1:
        raise ExportError(f"{' and '.join(names)} are separate tables: export them one at a time")
    offsets_ns = [0] * len(runs) if names == ["summary"] else offsets_ns_of(runs)
    table = _TABLES[names[0]](runs) if names else _spans
    for run, rank, offset_ns in zip(runs, ranks_of(runs), offsets_ns, strict=True):
        parts = table(run, offset_ns)
        yield run, rank, parts if names else _counted(parts, advance)
        advance(len(run.spans) if names else 0)


def _counted(parts: Iterator[TablePart], advance: Callable[[int], None]) -> Iterator[TablePart]:
    """Parts of spans; calls `advance` when each is done with."""
    for part in parts:
        yield part
        advance(len(part["path"].values))


def _spans(run: Run, offset_ns: int) -> Iterator[TablePart]:
    """A row for each span, in the order in which the run has them."""
    texts = _texts(run) | {"phase": run.names}
    for rows in _slices(run.spans):
        more = {"device_ns": run.span_device_ns[rows]}
        yield _part(_SPANS, run.spans[rows], texts, more, offset_ns)


def _modules(run: Run, offset_ns: int) -> Iterator[TablePart]:
    """A row for each pass through a module."""
    kinds = [kind.name.lower() for kind in ModulePass]
    texts = _texts(run) | {"module": run.module_names, "kind": kinds}
    for rows in _slices(run.module_spans):
        yield _part(_MODULES, run.module_spans[rows], texts, {}, offset_ns)


def _texts(run: Run) -> dict[str, Sequence[str]]:
    return {
        "path": run.paths,
        "thread_name": [thread.name for thread in run.threads],
        "stream_name": [stream.name for stream in run.streams],
    }


def _part(
    names: Sequence[str],
    records: NDArray[np.void],
    texts: Mapping[str, Sequence[str]],
    more: Mapping[str, NDArray[np.int64]],
    offset_ns: int,
) -> TablePart:
    part = {}
    for name in names:
        values = more[name] if name in more else records[_NUMBERS_OF_NAMES.get(name, name)]
        if name in _TIMES:
            values = _on_axis(values, offset_ns)
        part[name] = TableColumn(values, texts.get(name))
    return part


def _metrics(run: Run, offset_ns: int) -> Iterator[TablePart]:
    """A row for each value of a metric, in the order in which they were read."""
    for rows in _slices(run.metrics):
        some = run.metrics[rows]
        yield {
            "metric": TableColumn(some["name"], run.metric_names),
            "update": TableColumn(some["update"]),
            "step": TableColumn(some["step"]),
            "host_ns": TableColumn(_on_axis(some["host_ns"], offset_ns)),
            "value": TableColumn(some["value"], gaps=np.zeros(len(some), np.bool_)),
        }


def _syncs(run: Run, offset_ns: int) -> Iterator[TablePart]:
    """A row for each wait for a device, for each thread in the order of their ends."""
    sites = run.syncs.sites
    libraries = [site.library for site in sites]
    allowed = np.array([site.is_allowed for site in sites], np.uint8)
    lines = np.array([site.line for site in sites], np.int64)
    library_lines = np.array([-1 if each is None else each.line for each in libraries], np.int64)
    files = [site.file for site in sites]
    functions = [site.function for site in sites]
    kinds = [site.kind.name.lower() for site in sites]
    library_files = ["" if each is None else each.file for each in libraries]
    library_functions = ["" if each is None else each.function for each in libraries]
    for rows in _slices(run.syncs.events):
        some = run.syncs.events[rows]
        site = some["site"].astype(np.int64)
        library = np.where(library_lines[site] < 0, -1, site)
        yield {
            "file": TableColumn(site, files),
            "line": TableColumn(lines[site]),
            "function": TableColumn(site, functions),
            "kind": TableColumn(site, kinds),
            "allowed": TableColumn(allowed[site]),
            "library_file": TableColumn(library, library_files),
            "library_line": TableColumn(library_lines[site]),
            "library_function": TableColumn(library, library_functions),
            "path": TableColumn(some["path"], run.paths),
            "step": TableColumn(some["step"]),
            "thread": TableColumn(some["thread"]),
            "thread_name": TableColumn(some["thread"], _texts(run)["thread_name"]),
            "begin_ns": TableColumn(_on_axis(some["begin_ns"], offset_ns)),
            "blocked_ns": TableColumn(some["duration_ns"]),
            "bytes": TableColumn(some["bytes"]),
        }


def _summary(run: Run, offset_ns: int) -> Iterator[TablePart]:
    """A row for each phase path with its statistics, in the order of `Run.phases`; what was not
    measured is missing."""
    number_of = {path: number for number, path in enumerate(run.paths)}
    paths = np.array([number_of[path] for path in run.phases], np.int64)
    phases = run.phases.values()
    part = {
        "phase": TableColumn(run.path_names[paths].astype(np.int64), run.names),
        "path": TableColumn(paths, run.paths),
        "count": TableColumn(np.array([phase.count for phase in phases], np.int64)),
    }
    for measure in _MEASURES:
        statistics = [getattr(phase, measure) for phase in phases]
        for name, kind in _NUMBERS.items():
            known = [getattr(one, name) if one and one.count else -1 for one in statistics]
            values = np.array([-1 if value >= _LIMIT else value for value in known], kind)
            part[f"{measure}_{name}"] = TableColumn(values, decimals=3)
    used = utilization(run)
    flops = {} if used is None else {row.name: row for row in used.phases}
    for name in ("model_flops", "hardware_flops", "mfu", "hfu"):
        known = [getattr(flops.get(path), name, None) for path in run.phases]
        part[name] = TableColumn(np.array([-1 if one is None else one for one in known], float))
    yield part


def _steps_of(runs: Sequence[Run]) -> RunTable:
    """The table of steps, with the time that each spent in each phase.

    The columns of phases are `host_ns/PATH` and, where device times are known, `device_ns/PATH`.
    Runs that are written together have those of all of them.
    """
    host: dict[str, None] = {}
    device: dict[str, None] = {}
    for run in runs:
        labels = labels_of(run.paths, MAX_PATHS)
        in_steps = span_scopes(run.spans) == Scope.STEP
        on_device = in_steps & (run.span_device_ns >= 0)
        for columns, wanted in ((host, in_steps), (device, on_device)):
            paths = distinct(run.spans["path"][wanted]).tolist()
            columns |= dict.fromkeys(labels[path] for path in paths)
    return partial(_steps, tuple(host), tuple(device))


def _steps(
    host: Sequence[str], device: Sequence[str], run: Run, offset_ns: int
) -> Iterator[TablePart]:
    """The steps of a run with columns of phases for these labels."""
    place = {label: number for number, label in enumerate(host)}
    labels = labels_of(run.paths, MAX_PATHS)
    column_of_path = np.array([place.get(label, 0) for label in labels], np.int64)
    known = known_steps(run)
    known = known[known["end_ns"] >= 0]
    known_phases_ns = phases_ns(run, known)

    def part(some: NDArray[np.void], times: NDArray[np.void]) -> TablePart:
        duration_ns = np.where(some["end_ns"] < 0, -1, durations_ns_of(some))
        place = places_in(known["index"], some["index"])
        is_known = place >= 0
        outside_phases_ns = np.full(len(some), -1)
        outside_phases_ns[is_known] = duration_ns[is_known] - known_phases_ns[place[is_known]]
        times = times[times["scope"] == Scope.STEP]
        host_ns, device_ns = matrix(some, times, column_of_path, len(host))
        host_ns = np.where(is_known, np.maximum(host_ns, 0), -1)
        device_ns[:, ~is_known] = -1
        return {
            "step": TableColumn(some["index"]),
            "begin_ns": TableColumn(_on_axis(some["begin_ns"], offset_ns)),
            "duration_ns": TableColumn(duration_ns),
            "samples": TableColumn(some["samples"], gaps=np.isnan(some["samples"])),
            "items": TableColumn(some["items"]),
            "complete": TableColumn(some["complete"].astype(np.uint8)),
            "thread": TableColumn(some["thread"]),
            "thread_name": TableColumn(some["thread"], _texts(run)["thread_name"]),
            "outside_phases_ns": TableColumn(outside_phases_ns),
            **{
                f"host_ns/{label}": TableColumn(ns) for label, ns in zip(host, host_ns, strict=True)
            },
            **{f"device_ns/{label}": TableColumn(device_ns[host.index(label)]) for label in device},
        }

    is_written = False
    for some, times, _ in phases_by_step(run, run.steps.array):
        for rows in slices_of(len(some), 1 << 14):
            yield part(some[rows], times)
            is_written = True
    if not is_written:
        yield part(run.steps.array[:0], np.empty(0, PHASE_TIME_DTYPE))


def _on_axis(times_ns: NDArray[np.int64], offset_ns: int) -> NDArray[np.int64]:
    """Times of a run on the axis; what is missing stays so."""
    return np.where(times_ns < 0, times_ns, times_ns + offset_ns) if offset_ns else times_ns


def _slices(records: NDArray[np.void]) -> Iterator[slice]:
    """The records in parts; at least one."""
    return slices_of(max(1, len(records)), _PART_ROWS)


OPTIONS: Mapping[str, tuple[str, str | None]] = {
    "summary": ("write one row per phase, not one per span", None),
    "steps": ("write one row per step, with a column for each phase", None),
    "metrics": ("write one row per value of a metric", None),
    "syncs": ("write one row per wait for a device", None),
    "modules": ("write one row per pass through a module", None),
}
"""The tables that are asked for by an option of this name; without any it is that of spans."""

_TABLES: Mapping[str, Callable[[Sequence[Run]], RunTable]] = {
    "summary": lambda runs: _summary,
    "steps": _steps_of,
    "metrics": lambda runs: _metrics,
    "syncs": lambda runs: _syncs,
    "modules": lambda runs: _modules,
}
