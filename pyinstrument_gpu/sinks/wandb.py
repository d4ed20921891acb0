# SPDX-License-Identifier: Apache-2.0
"""Rows of every step for Weights & Biases; docs/exporters/viewers.md lists the names."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Protocol

from pyinstrument_gpu.errors import SinkError
from pyinstrument_gpu.sinks.scalars import Point, scalars_of
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink

_PREFIX = "pyinstrument_gpu/"
_STEP = f"{_PREFIX}step_index"


class WandbRun(Protocol):
    """A run like that which `wandb.init` returns."""

    def log(self, data: dict[str, Any], /) -> object: ...

    def define_metric(self, name: str, /) -> object: ...


class WandbSink(Sink):
    """Logs every step, and the metrics that are read, to a run of Weights & Biases.

    The rows have a step axis of their own, `pyinstrument_gpu/step_index`, on which late values find
    their place. Each also takes one number of the run's own count of rows, `_step`: a program that
    passes `step=` to `log` itself should give the sink another run.

    Args:
        run: what `wandb.init` returned. It remains the caller's, who finishes it after the
            recording.
    """

    def __init__(self, run: WandbRun) -> None:
        if not all(callable(getattr(run, name, None)) for name in ("log", "define_metric")):
            raise TypeError(f"run must be what wandb.init() returned, got {run!r}")
        self._run: Any = run

    def open(self) -> None:
        """Define the step axis.

        Raises:
            SinkError: the run takes no definition, for example because it is finished.
        """
        try:
            self._run.define_metric(_STEP, hidden=True)
            # The values of all names that begin so; a row brings its step.
            self._run.define_metric(f"{_PREFIX}*", step_metric=_STEP, step_sync=False)
        except Exception as error:
            raise SinkError(f"can't write to the wandb run: {error}") from error

    def write(self, update: RunUpdate) -> None:
        """Log the new steps and readings."""
        scalars = scalars_of(update)
        for (step, walltime), row in groupby(scalars, key=_step_and_time):
            values = {f"{_PREFIX}{scalar.tag}": scalar.value for scalar in row}
            self._run.log({_STEP: step, "_timestamp": walltime, **values})


def _step_and_time(scalar: Point) -> tuple[int, float]:
    return scalar.step, scalar.walltime
