# SPDX-License-Identifier: Apache-2.0
"""Updates as points of curves, for sinks that show values by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.paths import labels_of, without_surrogates
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.sinks.sink import RunUpdate

GROUPS = {Scope.STEP: "phase", Scope.OTHER_THREADS: "other_threads"}
"""What the tags of each scope begin with."""
MAX_PATHS = 64
"""That have curves of their own; later ones are "other"."""
MAX_STEPS = 100
"""Of an update, and values of a metric. If a sink is given more, it gets evenly spaced ones."""


class Point(NamedTuple):
    """A point of a curve. `walltime`: when the step ended or the metric was read, in seconds of the
    wall clock; or since the run began where it is not known when that was."""

    tag: str
    value: float
    step: int
    walltime: float


def scalars_of(update: RunUpdate, most: int | None = None) -> Iterator[Point]:
    """Yield an update's points: those of its steps in their order, then its metrics as they were
    read. Points with the same step and time are next to each other. At most `most` of a curve."""
    most = most or MAX_STEPS
    return chain(_step_scalars(update, most), _metric_scalars(update, most))


def _step_scalars(update: RunUpdate, most: int) -> Iterator[Point]:
    labels = labels_of(update.paths, MAX_PATHS)
    times = update.phase_times
    steps = update.steps[:: max(1, -(-len(update.steps) // most))]
    first = np.searchsorted(times["step"], steps["index"]).tolist()
    last = np.searchsorted(times["step"], steps["index"], side="right").tolist()
    columns = ["index", "begin_ns", "end_ns", "samples"]
    for row, begin, end in zip(steps[columns].tolist(), first, last, strict=True):
        index, begin_ns, end_ns, samples = row
        duration_ns = end_ns - begin_ns
        values = {"step/time_ms": duration_ns / 1e6}
        if not math.isnan(samples) and duration_ns > 0:
            values["step/samples_per_s"] = samples / duration_ns * 1e9
        values.update(_phases_ms(times[begin:end], labels))
        for tag, value in values.items():
            yield Point(tag, value, index, (update.began_realtime_ns + end_ns) / 1e9)


def _evenly_spaced(names: NDArray[np.uint32], most: int) -> NDArray[np.int64]:
    """The places of at most so many values of each metric. A metric that each step has may have
    thousands in an update."""
    places = [np.flatnonzero(names == name) for name in np.unique(names)]
    return np.sort(
        np.concatenate(
            [np.empty(0, np.int64)] + [some[:: max(1, -(-len(some) // most))] for some in places]
        )
    )


def _metric_scalars(update: RunUpdate, most: int) -> Iterator[Point]:
    """The scalars of metrics, each of its step (`RunUpdate.metric_steps`)."""
    taken = _evenly_spaced(update.metrics["name"], most)
    tags = [f"metrics/{without_surrogates(name)}" for name in update.metric_names]
    values = update.metrics[["host_ns", "name", "value"]][taken].tolist()
    steps = update.metric_steps[taken].tolist()
    for step, (host_ns, name, value) in zip(steps, values, strict=True):
        if step >= 0:
            yield Point(tags[name], value, step, (update.began_realtime_ns + host_ns) / 1e9)


def _phases_ms(times: NDArray[np.void], labels: Sequence[str]) -> dict[str, float]:
    """Return what a step spent in phases, by tag. A device time is missing where it is not known of
    every span."""
    host_ns: dict[str, float] = {}
    device_ns: dict[str, float] = {}
    columns = ["path", "scope", "host_ns", "device_ns"]
    for path, scope, on_host_ns, on_device_ns in times[columns].tolist():
        host, device = (
            f"{GROUPS[Scope(scope)]}{where}/{labels[path]}" for where in ("", "_device")
        )
        known_ns = on_device_ns if on_device_ns >= 0 else math.nan
        host_ns[host] = host_ns.get(host, 0) + on_host_ns
        device_ns[device] = device_ns.get(device, 0) + known_ns
    sums_ns = (host_ns | device_ns).items()
    return {tag: sum_ns / 1e6 for tag, sum_ns in sums_ns if not math.isnan(sum_ns)}
