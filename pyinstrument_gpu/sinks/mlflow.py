# SPDX-License-Identifier: Apache-2.0
"""Metrics of every step for MLflow; docs/exporters/viewers.md lists the names."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from pyinstrument_gpu.errors import SinkError, needed_for
from pyinstrument_gpu.sinks.scalars import scalars_of
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink

_PREFIX = "pyinstrument_gpu/"
_MOST_PER_CALL = 1000  # MLflow's limit
_LONGEST_KEY = 250
_NOT_ALLOWED = re.compile(r"[^\w.\- /]", re.ASCII)
# What would name another place than it says, if the key were a file's path.
_NO_FOLDER = re.compile(r"(?:^|(?<=/))(\.{0,2})(?=/|$)")


class MLflowSink(Sink):
    """Logs every step, and the metrics that are read, to a run of MLflow.

    Args:
        run_id: the id of the run, which remains the caller's. None takes the run that is active in
            the thread that adds the sink.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id
        self._keys: dict[str, str] = {}
        self._client: Any = None

    def open(self) -> None:
        """Find the run, at the tracking URI that holds now.

        Raises:
            SinkError: no run is active, there is none with that id, or the store can't be reached.
            MissingDependencyError: MLflow is not installed.
        """
        with needed_for("the MLflow sink", "mlflow"):
            import mlflow
        self._client = mlflow.MlflowClient()
        if self._run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise SinkError(
                    "no run of MLflow is active in this thread: call mlflow.start_run() first, or "
                    "pass the run_id of one"
                )
            self._run_id = active.info.run_id
        else:
            try:
                self._client.get_run(self._run_id)
            except Exception as error:
                raise SinkError(f"can't log to the MLflow run {self._run_id}: {error}") from error

    def write(self, update: RunUpdate) -> None:
        """Log the new steps and readings, a thousand values at a time."""
        from mlflow.entities import Metric

        scalars = scalars_of(update)
        metrics = (
            Metric(self._key(tag), value, round(walltime * 1e3), step)
            for tag, value, step, walltime in scalars
        )
        while batch := list(islice(metrics, _MOST_PER_CALL)):
            # Not queued: values that the server doesn't take would pile up.
            self._client.log_batch(self._run_id, metrics=batch, synchronous=True)

    def _key(self, tag: str) -> str:
        """The key of a curve: like its tag, in characters that MLflow takes, and of no other."""
        key = self._keys.get(tag)
        if key is None:
            key = _cut(_PREFIX + _NO_FOLDER.sub(r"_\1", _NOT_ALLOWED.sub("_", tag)), _LONGEST_KEY)
            like, number, taken = key, 1, set(self._keys.values())
            while key in taken:
                number += 1
                end = f"_{number}"
                key = _cut(like, _LONGEST_KEY - len(end)) + end
            self._keys[tag] = key
        return key


def _cut(key: str, most: int) -> str:
    return key if len(key) <= most else key[:most].rstrip("/.")
