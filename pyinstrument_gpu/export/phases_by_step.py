# SPDX-License-Identifier: Apache-2.0
"""The time of each step of a run in each phase, for the steps of which that is known."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.export.ranges import by_begin, range_tables
from pyinstrument_gpu.sinks.phase_times import keys_of, phase_times, rows_of, summed


def known_steps(run: Run) -> NDArray[np.void]:
    """The steps that lack no span of their own thread (`STEP_DTYPE`).

    Where spans were lost for another reason than their age, and it is not known of which steps,
    there are none.
    """
    known = analysis.of(run).kept_steps
    return known if analysis.of(run).span_losses.are_located else known[:0]


def phases_by_step(
    run: Run, steps: NDArray[np.void]
) -> Iterator[tuple[NDArray[np.void], NDArray[np.void], int]]:
    """Yield parts of `steps`, each with its phase times (`PHASE_TIME_DTYPE`), ascending, and the
    number of spans that these are of.

    Those of other threads are left out where spans were lost for their age.
    """
    known = known_steps(run)["index"]
    scopes = [Scope.STEP]
    if len(run.spans) == run.phases_recorded:
        scopes.append(Scope.OTHER_THREADS)
    for some_steps, rows in _steps_and_spans(run, steps):
        spans = run.spans[rows]
        wanted = np.isin(spans["step"], known) & np.isin(span_scopes(spans), scopes)
        yield some_steps, _phase_times(spans[wanted], run.span_device_ns[rows][wanted]), len(rows)


def matrix(
    steps: NDArray[np.void],
    times: NDArray[np.void],
    column_of_path: NDArray[np.int64],
    columns: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Phase times with a row for each column and a place for each step: on the host, -1 where there
    are none, and on the device, -1 where that is not known of all.

    Args:
        steps: `STEP_DTYPE`, ascending by index.
        times: of any steps; those of others are left out.
        column_of_path: paths of the same column are summed up.
        columns: their number.
    """
    place = places_in(steps["index"], times["step"])
    place, times = place[place >= 0], times[place >= 0]
    cell = column_of_path[times["path"]] * len(steps) + place
    is_known = times["device_ns"] >= 0
    host_ns, device_ns, count, known = np.zeros((4, columns * len(steps)), np.int64)
    np.add.at(host_ns, cell, np.ascontiguousarray(times["host_ns"]))
    np.add.at(device_ns, cell, np.where(is_known, times["device_ns"], 0))
    np.add.at(count, cell, 1)
    np.add.at(known, cell, is_known.astype(np.int64))
    host_ns[count == 0] = -1
    device_ns[(count == 0) | (known < count)] = -1
    shape = columns, len(steps)
    return host_ns.reshape(shape), device_ns.reshape(shape)


def _steps_and_spans(
    run: Run, steps: NDArray[np.void]
) -> Iterator[tuple[NDArray[np.void], NDArray[np.int64]]]:
    """Yield parts of the steps, each with the places of all their spans."""
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
        host_ns=durations_ns_of(spans, "host_"),
        timed=timed,
        device_ns=np.where(timed, device_ns, 0),
    )
    return phase_times(summed(rows))
