# SPDX-License-Identifier: Apache-2.0
"""What an update says, as points of curves: for sinks that show values by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """One point of a curve. `walltime`: when the step ended or the metric was read, in seconds of
    the wall clock; or since the run began where it is not known when that was."""

    tag: str
    value: float
    step: int
    walltime: float


class PhaseClock(NamedTuple):
    """Where and on which clock a time was spent: in spans of a path with that `label`, on their own
    thread or, with `on_device`, on their stream."""

    scope: Scope
    label: str
    on_device: bool


@dataclass(frozen=True)
class PhasesOfStep:
    """A step, and the nanoseconds that it spent in phases. A device time is missing where it is not
    known of every span. `samples` is NaN if it is unknown."""

    index: int
    begin_ns: int
    end_ns: int
    samples: float
    phases_ns: dict[PhaseClock, float]

    @property
    def samples_per_s(self) -> float | None:
        """None where the number of samples is not known."""
        if self.samples != self.samples or self.end_ns <= self.begin_ns:
            return None
        return self.samples / (self.end_ns - self.begin_ns) * 1e9


def scalars_of(update: RunUpdate, most: int | None = None) -> Iterator[Point]:
    """All points of an update: those of its steps in their order, then its metrics as they were
    read. Points with the same step and time are next to each other. At most so many of a curve."""
    most = most or MAX_STEPS
    began_ns = update.began_realtime_ns
    taken = _evenly_spaced(update.metrics["name"], most)
    return chain(
        _step_scalars(began_ns, phases_of_steps(update, MAX_PATHS, most)),
        _metric_scalars(
            began_ns, update.metric_names, update.metrics[taken], update.metric_steps[taken]
        ),
    )


def phases_of_steps(update: RunUpdate, max_paths: int, most: int) -> Iterator[PhasesOfStep]:
    """The steps of an update with their phases; paths after the first so many are "other"."""
    labels = labels_of(update.paths, max_paths)
    times = update.phase_times
    steps = update.steps[:: max(1, -(-len(update.steps) // most))]
    first = np.searchsorted(times["step"], steps["index"]).tolist()
    last = np.searchsorted(times["step"], steps["index"], side="right").tolist()
    columns = ["index", "begin_ns", "end_ns", "samples"]
    for row, begin, end in zip(steps[columns].tolist(), first, last, strict=True):
        index, begin_ns, end_ns, samples = row
        phases_ns = _phases_ns(times[begin:end], labels)
        yield PhasesOfStep(index, begin_ns, end_ns, samples, phases_ns)


def _step_scalars(began_ns: int, steps: Iterator[PhasesOfStep]) -> Iterator[Point]:
    for step in steps:
        values = {"step/time_ms": (step.end_ns - step.begin_ns) / 1e6}
        if step.samples_per_s is not None:
            values["step/samples_per_s"] = step.samples_per_s
        for (scope, label, on_device), time_ns in step.phases_ns.items():
            values[f"{GROUPS[scope]}{'_device' if on_device else ''}/{label}"] = time_ns / 1e6
        for tag, value in values.items():
            yield Point(tag, value, step.index, (began_ns + step.end_ns) / 1e9)


def _evenly_spaced(names: NDArray[np.uint32], most: int) -> NDArray[np.int64]:
    """The places of at most so many values of each metric. A metric that each step has may have
    thousands in an update."""
    places = [np.flatnonzero(names == name) for name in np.unique(names)]
    return np.sort(
        np.concatenate(
            [np.empty(0, np.int64)] + [some[:: max(1, -(-len(some) // most))] for some in places]
        )
    )


def _metric_scalars(
    began_ns: int, names: Sequence[str], metrics: NDArray[np.void], steps: NDArray[np.int64]
) -> Iterator[Point]:
    """The scalars of metrics, each of its step (`RunUpdate.metric_steps`)."""
    tags = [f"metrics/{without_surrogates(name)}" for name in names]
    values = metrics[["host_ns", "name", "value"]].tolist()
    for step, (host_ns, name, value) in zip(steps.tolist(), values, strict=True):
        if step >= 0:
            yield Point(tags[name], value, step, (began_ns + host_ns) / 1e9)


def _phases_ns(times: NDArray[np.void], labels: Sequence[str]) -> dict[PhaseClock, float]:
    host_ns: dict[PhaseClock, float] = {}
    device_ns: dict[PhaseClock, float] = {}
    columns = ["path", "scope", "host_ns", "device_ns"]
    for path, scope, on_host_ns, on_device_ns in times[columns].tolist():
        host = PhaseClock(Scope(scope), labels[path], False)
        device = host._replace(on_device=True)
        known_ns = on_device_ns if on_device_ns >= 0 else math.nan
        host_ns[host] = host_ns.get(host, 0) + on_host_ns
        device_ns[device] = device_ns.get(device, 0) + known_ns
    sums_ns = (host_ns | device_ns).items()
    return {clock: sum_ns for clock, sum_ns in sums_ns if not math.isnan(sum_ns)}
