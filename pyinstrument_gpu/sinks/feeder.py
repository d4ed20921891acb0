# SPDX-License-Identifier: Apache-2.0
"""The thread that gives sinks what is new in a run log as it grows, as a `RunUpdate` for each look.

Spans are summed by step and path at once, so a look costs what is new and not what there is. A step
is handed over when its spans are known to be there: one look after it closed, for the last of them
may still have been in a thread's buffer, and then when its device times are known, but not after
`_LOOKS_FOR_DEVICE_TIMES`. Values of metrics are handed over as they come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.file.blocks import BlockType, Records, true_prefix
from pyinstrument_gpu.core.file.device_times import span_indices
from pyinstrument_gpu.core.file.items import (
    DEVICE_TIME_ITEM,
    METRIC_ITEM,
    NONE,
    SPAN_ITEM,
    STEP_ITEM,
    columns,
)
from pyinstrument_gpu.core.file.live_log import LiveLog, LogSubscription
from pyinstrument_gpu.core.file.statistics import decode_statistics
from pyinstrument_gpu.core.file.steps import step_columns
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SpanFlag, span_scopes
from pyinstrument_gpu.core.statistics import over_scopes
from pyinstrument_gpu.patching.problems import warn_of
from pyinstrument_gpu.sinks.phase_times import keys_of, phase_times, rows_of, step_of, summed
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink, Totals, steps_of_metrics

# Of one processor's time, at most this share goes to sinks.
_MOST_OF_THE_TIME = 0.05

_LOOKS_FOR_DEVICE_TIMES = 8


class RunTail:
    """Follows the log of the recording that is active."""

    def __init__(self, environment: Mapping[str, Any], path: str | None = None) -> None:
        self._environment = environment
        self._path = path
        self._log = LiveLog()
        self._spans_seen = 0
        self._passes_seen = 0
        self._spans_missed = 0
        # Steps up to this serial get no more spans: handed over, or some may have been missed.
        self._forgotten_up_to = -1
        # The last step that was handed over, if there is one.
        self._last_step = np.empty(0, STEP_ITEM)
        # Of steps that were not handed over, by serial.
        self._steps = np.empty(0, STEP_ITEM)
        self._looks: NDArray[np.int64] = np.empty(0, np.int64)
        self._sums = rows_of(np.empty(0, np.int64))
        # The spans among them whose device times are still to come: index, ascending, and key.
        self._waiting = np.empty((2, 0), np.int64)

    def look(self, taken: bytes, final: bool = False) -> RunUpdate:
        """Return what is new.

        Args:
            taken: from the recording's `LogSubscription`.
            final: whether the recording has stopped and nothing more will come.
        """
        if taken:  # and with it all that stood in the buffers of threads at the last look
            self._looks += 1
        # All of a type at once: there is a block for every tick. None before what it refers to.
        blocks = self._log.take(taken)
        self._take_steps(blocks.records(BlockType.STEPS, STEP_ITEM).items)
        self._take_spans(blocks.records(BlockType.SPANS, SPAN_ITEM))
        self._take_device_times(blocks.records(BlockType.DEVICE_TIMES, DEVICE_TIME_ITEM).items)
        self._note_missed_spans()
        done = len(self._steps) if final else self._done()
        metrics = blocks.records(BlockType.METRICS, METRIC_ITEM).items
        return self._hand_over(done, metrics, final)

    def _take_steps(self, steps: NDArray[np.void]) -> None:
        self._steps = np.append(self._steps, steps)
        self._looks = np.append(self._looks, np.zeros(len(steps), np.int64))

    def _take_spans(self, spans: Records) -> None:
        first, items = spans
        index = first + np.arange(len(items))
        self._spans_seen += len(items)
        is_phase = self._log.tables.is_phase[items["path"]]  # modules are not handed over
        self._passes_seen += len(items) - int(np.count_nonzero(is_phase))
        steps = items["step"].astype(np.int64)
        wanted = (items["step"] != NONE) & (steps > self._forgotten_up_to)
        wanted &= is_phase
        items, index = items[wanted], index[wanted]
        keys = keys_of(items["step"], items["path"], span_scopes(items))
        host_ns = durations_ns_of(items, "host_")
        self._sums = summed(self._sums, rows_of(keys, count=1, host_ns=host_ns))
        waits = (items["flags"] & SpanFlag.DEVICE) != 0
        self._waiting = np.append(self._waiting, np.stack([index[waits], keys[waits]]), axis=1)

    def _take_device_times(self, items: NDArray[np.void]) -> None:
        spans = span_indices(items)
        waiting, keys = self._waiting
        place = np.searchsorted(waiting, spans)
        here = np.isin(spans, waiting)
        place, durations_ns = place[here], items["duration_ns"][here]
        known = durations_ns >= 0  # -1: the device had not finished when the recording gave up
        rows = rows_of(keys[place][known], timed=1, device_ns=durations_ns[known])
        self._sums = summed(self._sums, rows)
        self._waiting = np.delete(self._waiting, place, axis=1)

    def _note_missed_spans(self) -> None:
        # Missed by the subscription, or lost on the way to the log: STATE counts every one.
        state = self._log.state
        missed = state.phases_recorded - self._spans_seen
        if missed == self._spans_missed:
            return
        self._spans_missed = missed
        newest = int(self._steps["serial"].max(initial=0)) if len(self._steps) else -1
        if state.open_step is not None:
            newest = max(newest, state.open_step.serial)
        # The next one may have opened while the last spans were counted.
        self._forget_up_to(newest + 1)

    def _done(self) -> int:
        """Return how many steps can be handed over: none before those in front of it."""
        waits = np.isin(self._steps["serial"], step_of(self._waiting[1]))
        done = (self._looks >= 1) & (~waits | (self._looks >= _LOOKS_FOR_DEVICE_TIMES))
        return true_prefix(done)

    def _hand_over(self, done: int, metric_items: NDArray[np.void], final: bool) -> RunUpdate:
        # All steps that were dropped before one with a value are in the log before that value.
        log, tables = self._log, self._log.tables
        metrics = columns(metric_items, METRIC_DTYPE, step=log.indices(metric_items["step"]))
        metric_steps = self._metric_steps(metrics)
        items = self._steps[:done]
        times = phase_times(self._sums[np.isin(step_of(self._sums["key"]), items["serial"])])
        times["step"] = log.indices(times["step"])
        times["path"] = (np.cumsum(tables.is_phase) - 1)[times["path"]]
        self._steps, self._looks = self._steps[done:], self._looks[done:]
        if done:
            self._last_step = items[-1:]
            self._forget_up_to(int(items["serial"][-1]))

        anchor = self._environment["anchor"]
        return RunUpdate(
            environment=self._environment,
            began_realtime_ns=anchor["realtime_ns"] - anchor["run_ns"],
            paths=tuple(compress(tables.paths, tables.is_phase)),
            steps=step_columns(items, log.indices(items["serial"])),
            phase_times=times,
            metric_names=tuple(tables.metric_names),
            metrics=metrics,
            metric_steps=metric_steps,
            dropped=log.state.dropped,
            phases_recorded=log.state.phases_recorded - self._passes_seen,
            final=final,
            decode_totals=partial(_decode_totals, log.statistics, tables.paths, tables.is_phase),
            path=self._path,
        )

    def _metric_steps(self, metrics: NDArray[np.void]) -> NDArray[np.int64]:
        steps = np.append(self._last_step, self._steps)
        return steps_of_metrics(metrics, self._log.indices(steps["serial"]), steps["end_ns"])

    def _forget_up_to(self, serial: int) -> None:
        self._forgotten_up_to = max(self._forgotten_up_to, serial)
        self._sums = self._sums[step_of(self._sums["key"]) > serial]
        self._waiting = self._waiting[:, step_of(self._waiting[1]) > serial]


def _decode_totals(
    statistics: bytes | None, paths: tuple[str, ...], is_phase: NDArray[np.bool_]
) -> Totals | None:
    if statistics is None:
        return None
    document = decode_statistics(statistics)
    # A path that is newer than the tables comes with the next look.
    phases = {
        paths[path]: phase
        for path, phase in over_scopes(document.phases).items()
        if path < len(paths) and is_phase[path]
    }
    return Totals(phases, document.step_totals)


class SinkFeeder:
    """Feeds the sinks of one recording, at intervals, on a daemon thread."""

    def __init__(
        self,
        recording: object,
        environment: Mapping[str, Any],
        deadline_s: float,
        path: str | None = None,
    ) -> None:
        self._subscription = LogSubscription(recording)
        self._tail = RunTail(environment, path)
        self._deadline_s = deadline_s
        self._sinks: list[Sink] = []
        self._interval_s = threading.TIMEOUT_MAX
        # Held while the log is read, and not while a sink writes, which may take forever. The
        # handler of a signal may stop the recording wherever its thread is.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="pig-sinks", daemon=True)
        self._thread.start()

    def add(self, sink: Sink, interval_s: float) -> None:
        """Feed a sink that is open, from now on. Of several intervals the shortest holds for
        all."""
        with self._lock:
            self._sinks.append(sink)
            self._interval_s = min(self._interval_s, interval_s)
        self._wake.set()

    def stop(self) -> None:
        """Give the sinks the rest, after the recording has stopped, and close them.

        Waits until the deadline at most; a sink that takes longer is left behind with a warning.
        """
        self._stopping = True
        self._wake.set()
        self._thread.join(self._deadline_s)
        with self._lock:
            self._abandoned = True
            self._subscription.close()
        if self._thread.is_alive():
            warn_of(
                f"a sink did not finish within {self._deadline_s:g} s and was abandoned: it may "
                "lack the latest data. The run itself is complete"
            )

    def _run(self) -> None:
        try:
            self._feed()
        except BaseException as error:  # nothing that we do ends a training
            for sink in tuple(self._sinks):
                self._switch_off(sink, error)

    def _feed(self) -> None:
        cost_s = 0.0
        while True:
            # What wakes it is a new sink, or the end.
            self._wake.wait(max(self._interval_s, cost_s / _MOST_OF_THE_TIME))
            self._wake.clear()
            began_s = time.thread_time()
            final = self._stopping
            with self._lock:
                if self._abandoned:
                    return
                update = self._tail.look(self._subscription.take(), final)
                sinks = tuple(self._sinks)
            for sink in sinks:
                try:
                    sink.write(update)
                except BaseException as error:
                    self._switch_off(sink, error)
            if final:
                for sink in tuple(self._sinks):
                    self._close(sink)
                return
            cost_s = time.thread_time() - began_s

    def _close(self, sink: Sink) -> None:
        with self._lock:
            self._sinks.remove(sink)
        try:
            sink.close()
        except BaseException as error:
            warn_of(
                f"{type(sink).__name__} could not be closed: {error!r}. The run itself is complete"
            )

    def _switch_off(self, sink: Sink, error: BaseException) -> None:
        warn_of(
            f"{type(sink).__name__} failed and was switched off: {error!r}. "
            "The recording and other sinks continue"
        )
        self._close(sink)
