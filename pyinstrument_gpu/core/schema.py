# SPDX-License-Identifier: Apache-2.0
"""The columns of a run's spans, steps and metrics."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.statistics import Scope

SPAN_DTYPE = np.dtype(
    [
        ("phase", "<u4"),
        ("path", "<u4"),
        ("step", "<i8"),
        ("depth", "<u2"),
        ("thread", "<u4"),
        ("device", "<i2"),
        ("stream", "<i4"),
        ("host_begin_ns", "<i8"),
        ("host_end_ns", "<i8"),
        ("device_begin_ns", "<i8"),
        ("device_end_ns", "<i8"),
        ("blocked_ns", "<i8"),
        ("flags", "<u4"),
    ]
)
"""One span. `phase` indexes `Run.names`, `path` `Run.paths`, `thread` `Run.threads`, `stream`
`Run.streams`; `device` is the ordinal of that stream's device. -1 is missing. Times are nanoseconds
since the run began, host and device on one axis; exact device times are in `Run.span_device_ns`."""


STEP_DTYPE = np.dtype(
    [
        ("index", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("samples", "<f8"),
        ("items", "<i8"),
        ("complete", "?"),
        ("thread", "<u4"),
    ]
)
"""One step, as in `Step`; unknown samples are NaN."""


METRIC_DTYPE = np.dtype(
    [
        ("update", "<u8"),
        ("step", "<i8"),
        ("host_ns", "<i8"),
        ("name", "<u4"),
        ("value", "<f8"),
    ]
)
"""One value of a reading of metrics. `update` is the number of the newest update in it, `step` the
index of that update's step (-1 none, or not known), `host_ns` when it was read, `name` indexes
`Run.metric_names`."""


def metrics_by_name(
    names: Sequence[str], metrics: NDArray[np.void]
) -> Iterator[tuple[str, NDArray[np.void]]]:
    """The readings of each metric that was read, in the order of the names."""
    for number, name in enumerate(names):
        readings = metrics[metrics["name"] == number]
        if len(readings):
            yield name, readings


class SpanFlag(enum.IntFlag):
    """Bits of a span's `flags`."""

    STEP_THREAD = 1
    """The span began on the thread that opened its step."""
    DEVICE = 2
    """The span was timed on the device too, whether or not its time became known."""
    DEVICE_UNFINISHED = 4
    """The device had not completed the span's work when that was last looked at."""


def span_scopes(
    spans: NDArray[np.void], profiled: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The `Scope` of each span of an array of `SPAN_DTYPE`.

    Args:
        profiled: of each span whether its step was profiled; if None, profiled steps are like
            others.
    """
    on_step_thread = (spans["flags"] & SpanFlag.STEP_THREAD) != 0
    inside = np.where(on_step_thread, Scope.STEP, Scope.OTHER_THREADS)
    if profiled is not None:
        inside = np.where(profiled, inside + Scope.PROFILED_STEP, inside)
    return np.where(spans["step"] < 0, Scope.OUTSIDE, inside)


def has_device_times(spans: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether it is known when each began and ended on its device, on the run's axis."""
    begin_ns, end_ns = spans["device_begin_ns"], spans["device_end_ns"]
    known: NDArray[np.bool_] = (begin_ns >= 0) & (end_ns >= begin_ns)
    return known
