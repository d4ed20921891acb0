# SPDX-License-Identifier: Apache-2.0
"""TensorBoard scalars by step; docs/exporters/tensorboard.md lists the tags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.paths import labels_of, without_surrogates
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.sinks.sink import Sink
from pyinstrument_gpu.sinks.update import RunUpdate

GROUPS = {Scope.STEP: "phase", Scope.OTHER_THREADS: "other_threads"}
"""What the tags of each scope begin with."""
MAX_PATHS = 64
_STEPS_PER_UPDATE = 100


class Scalar(NamedTuple):
    """One point of a curve. `walltime`: when the step ended or the metric was read, in seconds of
    the wall clock; or since the run began where it is not known when that was."""

    tag: str
    value: float
    step: int
    walltime: float


class ScalarWriter(Protocol):
    """As `torch.utils.tensorboard.SummaryWriter` and that of tensorboardX."""

    def add_scalar(
        self, tag: str, scalar_value: float, global_step: int, walltime: float, /
    ) -> object: ...


class TensorBoardSink(Sink):
    """Writes scalars of every step, and the metrics that are read, to a `SummaryWriter`.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or anything with
            `add_scalar(tag, value, step, walltime)`. It remains the caller's: it is flushed but
            not closed.
        max_paths: the number of paths that have curves of their own. Later ones are summed up as
            "other".
        steps_per_update: the most steps to write per update. If there are more, evenly spaced
            ones are written.
    """

    def __init__(
        self,
        writer: ScalarWriter,
        *,
        max_paths: int = MAX_PATHS,
        steps_per_update: int = _STEPS_PER_UPDATE,
    ) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                "writer must have add_scalar(tag, value, step, walltime), as torch's "
                f"SummaryWriter does, got {writer!r}"
            )
        self._writer = writer
        self._max_paths = max_paths
        self._steps_per_update = steps_per_update

    def write(self, update: RunUpdate) -> None:
        """Write the scalars of new steps and readings."""
        stride = max(1, -(-len(update.steps) // self._steps_per_update))
        began_ns = update.began_realtime_ns
        labels = labels_of(update.paths, self._max_paths)
        steps = update.steps[::stride]
        for scalar in chain(
            step_scalars(began_ns, labels, steps, update.phase_times),
            metric_scalars(began_ns, update.metric_names, update.metrics, update.metric_steps),
        ):
            self._writer.add_scalar(*scalar)

    def close(self) -> None:
        """Flush the writer."""
        flush = getattr(self._writer, "flush", None)
        if flush is not None:
            flush()


def step_scalars(
    began_ns: int, labels: Sequence[str], steps: NDArray[np.void], phase_times: NDArray[np.void]
) -> Iterator[Scalar]:
    """The scalars of some steps, in their order. Of each path there is a label; `phase_times` may
    be of more steps."""
    first = np.searchsorted(phase_times["step"], steps["index"]).tolist()
    last = np.searchsorted(phase_times["step"], steps["index"], side="right").tolist()
    columns = ["index", "begin_ns", "end_ns", "samples"]
    for row, begin, end in zip(steps[columns].tolist(), first, last, strict=True):
        index, begin_ns, end_ns, samples = row
        values = {"step/time_ms": (end_ns - begin_ns) / 1e6}
        if samples == samples and end_ns > begin_ns:  # NaN: unknown
            values["step/samples_per_s"] = samples / (end_ns - begin_ns) * 1e9
        values.update(_phase_values(phase_times[begin:end], labels))
        for tag, value in values.items():
            yield Scalar(tag, value, index, (began_ns + end_ns) / 1e9)


def metric_scalars(
    began_ns: int, names: Sequence[str], metrics: NDArray[np.void], steps: NDArray[np.int64]
) -> Iterator[Scalar]:
    """The scalars of metrics, each of its step (`RunUpdate.metric_steps`)."""
    tags = [f"metrics/{without_surrogates(name)}" for name in names]
    values = metrics[["host_ns", "name", "value"]].tolist()
    for step, (host_ns, name, value) in zip(steps.tolist(), values, strict=True):
        if step >= 0:
            yield Scalar(tags[name], value, step, (began_ns + host_ns) / 1e9)


def _phase_values(times: NDArray[np.void], labels: Sequence[str]) -> dict[str, float]:
    host_ns: dict[str, float] = {}
    device_ns: dict[str, float] = {}
    columns = ["path", "scope", "host_ns", "device_ns"]
    for path, scope, on_host_ns, on_device_ns in times[columns].tolist():
        group, label = GROUPS[Scope(scope)], labels[path]
        host_tag, device_tag = f"{group}/{label}", f"{group}_device/{label}"
        known_ns = on_device_ns if on_device_ns >= 0 else math.nan
        host_ns[host_tag] = host_ns.get(host_tag, 0) + on_host_ns
        device_ns[device_tag] = device_ns.get(device_tag, 0) + known_ns
    sums_ns = (host_ns | device_ns).items()
    return {tag: sum_ns / 1e6 for tag, sum_ns in sums_ns if not math.isnan(sum_ns)}
