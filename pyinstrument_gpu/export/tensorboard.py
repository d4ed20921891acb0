# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files of a run that is over; docs/exporters/tensorboard.md lists the tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.errors import MissingDependencyError
from pyinstrument_gpu.export.atomic_file import atomic_write
from pyinstrument_gpu.export.ranges import by_begin, range_tables
from pyinstrument_gpu.export.rank_alignment import ranks_of
from pyinstrument_gpu.model.paths import labels_of
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import span_scopes
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.sinks.phase_times import keys_of, phase_times, rows_of, summed
from pyinstrument_gpu.sinks.tensorboard import MAX_PATHS, Scalar, metric_scalars, step_scalars
from pyinstrument_gpu.sinks.update import steps_of_metrics

_FORMAT = "brain.Event:2"


def write(runs: Sequence[RunData], folder: Path, *, advance: Callable[[int], None]) -> None:
    """Write one event file per run into a log directory; several runs go to `rank0/` and so on.

    The file bears the id of its run: writing a run again replaces it, and other event files stay.

    Raises:
        ExportError: the directory is a file.
        MissingDependencyError: tensorboard is not installed.
    """
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise MissingDependencyError(
            "writing for TensorBoard needs tensorboard: pip install 'pyinstrument-gpu[tensorboard]'"
        ) from error
    for run, rank in zip(runs, ranks_of(runs), strict=True):
        target = folder / f"rank{rank}" if len(runs) > 1 else folder
        target.mkdir(parents=True, exist_ok=True)
        with atomic_write(target / _file_name(run)) as sink:
            records = RecordWriter(sink)
            for event in _events(run):
                records.write(event)
        advance(len(run.spans))


def _file_name(run: RunData) -> str:
    # TensorBoard knows its files by "tfevents", and reads those of one directory by name.
    began_s = (run.began_realtime_ns or 0) // 1_000_000_000
    run_id = run.environment.get("run_id")
    # As a number: no text of a run takes part in a path.
    name = "run" if run_id is None else f"{int(run_id, 16):016x}"
    return f"events.out.tfevents.{began_s:010d}.{name}"


def _events(run: RunData) -> Iterator[bytes]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    began_s = (run.began_realtime_ns or 0) / 1e9
    yield Event(wall_time=began_s, file_version=_FORMAT).SerializeToString()
    for (step, walltime), of_step in groupby(_scalars(run), attrgetter("step", "walltime")):
        values = [Summary.Value(tag=each.tag, simple_value=each.value) for each in of_step]
        event = Event(wall_time=walltime, step=step, summary=Summary(value=values))
        yield event.SerializeToString()


def _scalars(run: RunData) -> Iterator[Scalar]:
    """The scalars of all steps, and then those of the metrics.

    Where spans were lost for another reason than their age, and it is not known of which steps, no
    step has phase times. Where they were lost for their age, those of other threads are left
    out.
    """
    began_ns = run.began_realtime_ns or 0
    labels = labels_of(run.paths, MAX_PATHS)
    steps = run.steps.closed
    known = analysis.of(run).kept_steps["index"]
    if not analysis.of(run).span_losses.are_located:
        known = known[:0]
    scopes = [Scope.STEP]
    if len(run.spans) == run.phases_recorded:
        scopes.append(Scope.OTHER_THREADS)
    for some_steps, rows in _steps_and_spans(run, steps):
        spans = run.spans[rows]
        wanted = np.isin(spans["step"], known) & np.isin(span_scopes(spans), scopes)
        phase_times = _phase_times(spans[wanted], run.span_device_ns[rows][wanted])
        yield from step_scalars(began_ns, labels, some_steps, phase_times)
    metric_steps = steps_of_metrics(run.metrics, steps["index"], steps["end_ns"])
    yield from metric_scalars(began_ns, run.metric_names, run.metrics, metric_steps)


def _steps_and_spans(
    run: RunData, steps: NDArray[np.void]
) -> Iterator[tuple[NDArray[np.void], NDArray[np.int64]]]:
    """Some of the steps, and the places of all their spans."""
    # Spans are put in order by their steps, as if those were moments; outside steps, nowhere.
    in_steps = range_tables(
        run.spans, lambda spans: np.minimum(spans["step"], 0), itemgetter("step", "step")
    )
    begin = 0
    for window in by_begin(*(table for _, table in in_steps)):
        end = int(np.searchsorted(steps["index"], window.begin_ns[-1], side="right"))
        yield steps[begin:end], np.sort(window.number)
        begin = end
    yield steps[begin:], np.empty(0, np.int64)


def _phase_times(spans: NDArray[np.void], device_ns: NDArray[np.int64]) -> NDArray[np.void]:
    timed = device_ns >= 0
    rows = rows_of(
        keys_of(spans["step"], spans["path"], span_scopes(spans)),
        count=1,
        host_ns=spans["host_end_ns"] - spans["host_begin_ns"],
        timed=timed,
        device_ns=np.where(timed, device_ns, 0),
    )
    return phase_times(summed(rows))
