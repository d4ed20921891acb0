# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files of a run that is over; docs/exporters/tensorboard.md lists the tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.paths import labels_of, without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.export import event_file
from pyinstrument_gpu.export.atomic_file import atomic_write
from pyinstrument_gpu.export.phases_by_step import matrix, phases_by_step
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.rank_alignment import ranks_of
from pyinstrument_gpu.sinks.scalars import GROUPS, MAX_PATHS
from pyinstrument_gpu.sinks.sink import steps_of_metrics

_STEPS_AT_ONCE = 1 << 13


def write(runs: Sequence[Run], folder: Path, *, advance: Callable[[int], None]) -> None:
    """Write one event file per run into a log directory; several runs go to `rank0/` and so on.

    The file bears the id of its run: writing a run again replaces it, and other event files stay.

    Raises:
        ExportError: the directory is a file.
    """
    for run, rank in zip(runs, ranks_of(runs), strict=True):
        target = folder / f"rank{rank}" if len(runs) > 1 else folder
        target.mkdir(parents=True, exist_ok=True)
        with atomic_write(target / _file_name(run)) as sink:
            sink.writelines(_events(run, advance))


def _file_name(run: Run) -> str:
    # TensorBoard knows its files by "tfevents", and reads those of one directory by name.
    began_s = (run.began_realtime_ns or 0) // 1_000_000_000
    run_id = run.environment.get("run_id")
    # As a number: no text of a run takes part in a path.
    name = "run" if run_id is None else f"{int(run_id, 16):016x}"
    return f"events.out.tfevents.{began_s:010d}.{name}"


def _events(run: Run, advance: Callable[[int], None]) -> Iterator[bytes]:
    """The scalars of all steps, and then those of the metrics."""
    yield event_file.head((run.began_realtime_ns or 0) / 1e9)
    curves = _Curves(run)
    done = 0
    for some_steps, times, spans in phases_by_step(run, run.steps.closed):
        for rows in slices_of(len(some_steps), _STEPS_AT_ONCE):
            yield from curves.events(some_steps[rows], times)
        advance(spans)
        done += spans
    yield from _metric_events(run)
    advance(len(run.spans) - done)  # those outside steps


class _Curves:
    """The tags of a run's steps and phases, each with its values."""

    def __init__(self, run: Run) -> None:
        labels = labels_of(run.paths, MAX_PATHS)
        names = list(dict.fromkeys(labels))
        self._began_ns = run.began_realtime_ns or 0
        self._column_of_path = np.array([names.index(label) for label in labels], np.int64)
        self._columns = len(names)
        self._tags = ["step/time_ms", "step/samples_per_s"]
        self._scopes = [scope for scope in GROUPS if (span_scopes(run.spans) == scope).any()]
        for scope in self._scopes:
            for group in (GROUPS[scope], f"{GROUPS[scope]}_device"):
                self._tags += [f"{group}/{name}" for name in names]

    def events(self, steps: NDArray[np.void], times: NDArray[np.void]) -> Iterator[bytes]:
        """Those of some steps; `times` may be of more."""
        duration_ns = steps["end_ns"] - steps["begin_ns"]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = steps["samples"] / duration_ns * 1e9
        values = [duration_ns[None] / 1e6, rate[None]]
        is_present = [np.ones((1, len(steps)), np.bool_), np.isfinite(rate)[None]]
        for scope in self._scopes:
            of_scope = times[times["scope"] == scope]
            for ns in matrix(steps, of_scope, self._column_of_path, self._columns):
                values.append(ns / 1e6)
                is_present.append(ns >= 0)
        wall_times = (self._began_ns + steps["end_ns"]) / 1e9
        return event_file.events(
            wall_times,
            steps["index"],
            self._tags,
            np.concatenate(values),
            np.concatenate(is_present),
        )


def _metric_events(run: Run) -> Iterator[bytes]:
    steps = run.steps.closed
    metrics, step = run.metrics, steps_of_metrics(run.metrics, steps["index"], steps["end_ns"])
    began_ns = run.began_realtime_ns or 0
    for number, name in enumerate(run.metric_names):
        places = np.flatnonzero((metrics["name"] == number) & (step >= 0))
        for rows in slices_of(len(places)):
            some = metrics[places[rows]]
            yield from event_file.events(
                (began_ns + some["host_ns"]) / 1e9,
                step[places[rows]],
                [f"metrics/{without_surrogates(name)}"],
                some["value"][None],
                np.ones((1, len(some)), np.bool_),
            )
