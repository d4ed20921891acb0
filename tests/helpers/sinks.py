# SPDX-License-Identifier: Apache-2.0
"""A sink that keeps what it is given, and what a run should have given it."""

import threading
from collections import Counter
from collections.abc import Callable

import numpy as np

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.statistics import Scope

# Only what hangs takes as long.
HANGS_AFTER_S = 600

Times = dict[tuple[int, str, Scope], tuple[int, int]]


class KeepingSink(pig.Sink):
    """Keeps every update."""

    def __init__(self) -> None:
        self.updates: list[pig.RunUpdate] = []
        self.opened = 0
        self.closed = 0
        self._new = threading.Condition()

    def open(self) -> None:
        self.opened += 1

    def write(self, update: pig.RunUpdate) -> None:
        with self._new:
            self.updates.append(update)
            self._new.notify_all()

    def close(self) -> None:
        self.closed += 1

    def wait_for(self, condition: Callable[[pig.RunUpdate], bool]) -> pig.RunUpdate:
        """The first update that is as asked for."""
        with self._new:
            assert self._new.wait_for(lambda: any(map(condition, self.updates)), HANGS_AFTER_S)
            return next(filter(condition, self.updates))

    @property
    def steps(self) -> list[int]:
        """The indices of the steps, in the order in which they came."""
        return [int(index) for update in self.updates for index in update.steps["index"]]

    @property
    def times(self) -> Times:
        """Count and host time by step, path and scope."""
        found: Times = {}
        for update in self.updates:
            for step, path, scope, count, host_ns, _ in update.phase_times.tolist():
                key = (step, update.paths[path], Scope(scope))
                assert key not in found
                found[key] = (count, host_ns)
        return found


def times_by_step(run: pig.Run) -> Times:
    """The same from the spans of a run."""
    counts: Counter[tuple[int, str, Scope]] = Counter()
    sums: Counter[tuple[int, str, Scope]] = Counter()
    closed = set(run.steps.closed["index"].tolist())
    for span in run.spans:
        if int(span["step"]) in closed:
            scope = Scope.STEP if span["flags"] & 1 else Scope.OTHER_THREADS
            key = (int(span["step"]), run.paths[span["path"]], scope)
            counts[key] += 1
            sums[key] += int(span["host_end_ns"] - span["host_begin_ns"])
    return {key: (count, sums[key]) for key, count in counts.items()}


def all_steps(sink: KeepingSink) -> np.ndarray:
    """The steps of all updates in one array."""
    return np.concatenate([update.steps for update in sink.updates])
