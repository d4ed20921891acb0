# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files of a run that is over, with the points that the live sink would have
written; docs/exporters/viewers.md lists the tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from pyinstrument_gpu.atomic_file import atomic_write
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import needed_for
from pyinstrument_gpu.export.phases_by_step import phases_by_step
from pyinstrument_gpu.export.runs import ranks_of
from pyinstrument_gpu.sinks.phase_times import PHASE_TIME_DTYPE
from pyinstrument_gpu.sinks.scalars import Point, scalars_of
from pyinstrument_gpu.sinks.sink import RunUpdate, steps_of_metrics

_VERSION = "brain.Event:2"


def write(runs: Sequence[Run], folder: Path, *, advance: Callable[[int], None]) -> None:
    """Write one event file per run into a log directory; several runs go to `rank0/` and so on.

    The file bears the id of its run: writing a run again replaces it, and other event files stay.

    Raises:
        ExportError: the directory is a file.
        MissingDependencyError: tensorboard is not installed.
    """
    with needed_for("the export for TensorBoard", "tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    for run, rank in zip(runs, ranks_of(runs), strict=True):
        target = folder / f"rank{rank}" if len(runs) > 1 else folder
        target.mkdir(parents=True, exist_ok=True)
        with atomic_write(target / _file_name(run), follow_links=False) as sink:
            records = RecordWriter(sink)
            head = Event(wall_time=(run.began_realtime_ns or 0) / 1e9, file_version=_VERSION)
            records.write(head.SerializeToString())
            # Those of one step are one event.
            for (step, walltime), points in groupby(
                _points(run, advance), attrgetter("step", "walltime")
            ):
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value, *_ in points]
                event = Event(wall_time=walltime, step=step, summary=Summary(value=values))
                records.write(event.SerializeToString())


def _file_name(run: Run) -> str:
    # TensorBoard knows its files by "tfevents", and reads those of one directory by name.
    began_s = (run.began_realtime_ns or 0) // 1_000_000_000
    run_id = run.environment.get("run_id")
    # As a number: no text of a run takes part in a path.
    name = "run" if run_id is None else f"{int(run_id, 16):016x}"
    return f"events.out.tfevents.{began_s:010d}.{name}"


def _points(run: Run, advance: Callable[[int], None]) -> Iterator[Point]:
    """Yield the points of all steps, and then those of the metrics."""
    steps, done, most = run.steps.closed, 0, max(1, len(run.steps.closed), len(run.metrics))
    update = RunUpdate(
        environment=run.environment,
        began_realtime_ns=run.began_realtime_ns or 0,
        paths=run.paths,
        steps=steps[:0],
        phase_times=np.empty(0, PHASE_TIME_DTYPE),
        metric_names=run.metric_names,
        metrics=run.metrics,
        metric_steps=steps_of_metrics(run.metrics, steps["index"], steps["end_ns"]),
        dropped=run.dropped,
        phases_recorded=run.phases_recorded,
        final=True,
        decode_totals=lambda: None,
    )
    of_steps = replace(update, metrics=run.metrics[:0], metric_steps=update.metric_steps[:0])
    for some_steps, times, spans in phases_by_step(run, steps):
        yield from scalars_of(replace(of_steps, steps=some_steps, phase_times=times), most)
        advance(spans)
        done += spans
    yield from scalars_of(update, most)
    advance(len(run.spans) - done)  # those outside steps
