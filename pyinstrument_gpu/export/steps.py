# SPDX-License-Identifier: Apache-2.0
"""The steps of a run as a table, with the time that each spent in each phase.

The columns of phases are `host_ns/PATH` and, where device times are known, `device_ns/PATH`. Runs
that are written together have those of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import phases_ns
from pyinstrument_gpu.core.distinct import distinct, places_in
from pyinstrument_gpu.core.paths import labels_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.phases_by_step import known_steps, matrix, phases_by_step
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.table import Column, Part, Table, on_axis
from pyinstrument_gpu.sinks.phase_times import PHASE_TIME_DTYPE

MAX_PATHS = 64
"""The paths that have columns of their own. Later ones share one."""


def steps(runs: Sequence[Run]) -> Table:
    """The table of these runs."""
    host: dict[str, None] = {}
    device: dict[str, None] = {}
    for run in runs:
        labels = labels_of(run.paths, MAX_PATHS)
        for columns, on_device in ((host, False), (device, True)):
            columns |= dict.fromkeys(labels[path] for path in _paths_in_steps(run, on_device))
    return partial(_steps, tuple(host), tuple(device))


def _steps(host: Sequence[str], device: Sequence[str], run: Run, offset_ns: int) -> Iterator[Part]:
    """The steps of a run with columns of phases for these labels."""
    columns = _PhaseColumns(run, host, device)
    is_written = False
    for some, times, _ in phases_by_step(run, run.steps.array):
        for rows in slices_of(len(some), 1 << 14):
            yield _part(run, some[rows], times, columns, offset_ns)
            is_written = True
    if not is_written:
        yield _part(run, run.steps.array[:0], None, columns, offset_ns)


class _PhaseColumns:
    """The columns of phases, and what is known of the steps that they are filled for.

    Attributes:
        host, device: the labels of the columns.
        of_path: for each path of the run the place in `host`.
        known: the steps that ended and lack no span of their own thread (`STEP_DTYPE`).
        known_phases_ns: the time of each of them inside phases.
    """

    def __init__(self, run: Run, host: Sequence[str], device: Sequence[str]) -> None:
        self.host, self.device = host, device
        place = {label: number for number, label in enumerate(host)}
        labels = labels_of(run.paths, MAX_PATHS)
        self.of_path = np.array([place.get(label, 0) for label in labels], np.int64)
        known = known_steps(run)
        self.known = known[known["end_ns"] >= 0]
        self.known_phases_ns = phases_ns(run, self.known)


def _paths_in_steps(run: Run, on_device: bool) -> list[int]:
    """The paths that the threads of steps were in during these."""
    is_wanted = span_scopes(run.spans) == Scope.STEP
    if on_device:
        is_wanted &= run.span_device_ns >= 0
    paths: list[int] = distinct(run.spans["path"][is_wanted]).tolist()
    return paths


def _part(
    run: Run,
    some: NDArray[np.void],
    times: NDArray[np.void] | None,
    columns: _PhaseColumns,
    offset_ns: int,
) -> Part:
    is_open = some["end_ns"] < 0
    duration_ns = np.where(is_open, -1, some["end_ns"] - some["begin_ns"])
    place = places_in(columns.known["index"], some["index"])
    is_known = place >= 0
    unattributed_ns = np.full(len(some), -1)
    inside_ns = columns.known_phases_ns[place[is_known]]
    unattributed_ns[is_known] = duration_ns[is_known] - inside_ns
    names = [thread.name for thread in run.threads]
    part = {
        "step": Column(some["index"]),
        "begin_ns": Column(on_axis(some["begin_ns"], offset_ns)),
        "duration_ns": Column(duration_ns),
        "samples": Column(some["samples"], gaps=np.isnan(some["samples"])),
        "items": Column(some["items"]),
        "complete": Column(some["complete"].astype(np.uint8)),
        "thread": Column(some["thread"]),
        "thread_name": Column(some["thread"], names),
        "unattributed_ns": Column(unattributed_ns),
    }
    if times is None:
        times = np.empty(0, PHASE_TIME_DTYPE)
    times = times[times["scope"] == Scope.STEP]
    host_ns, device_ns = matrix(some, times, columns.of_path, len(columns.host))
    host_ns = np.where(is_known, np.maximum(host_ns, 0), -1)
    device_ns[:, ~is_known] = -1
    for label, of_phase in zip(columns.host, host_ns, strict=True):
        part[f"host_ns/{label}"] = Column(of_phase)
    for label in columns.device:
        part[f"device_ns/{label}"] = Column(device_ns[columns.host.index(label)])
    return part
