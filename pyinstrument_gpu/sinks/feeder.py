# SPDX-License-Identifier: Apache-2.0
"""The thread that gives sinks what is new."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from pyinstrument_gpu.core.file.live_log import Tap
from pyinstrument_gpu.patching.problems import warn_of
from pyinstrument_gpu.sinks.sink import Sink
from pyinstrument_gpu.sinks.tail import RunTail

# Of one processor's time, at most this share goes to sinks.
_MOST_OF_THE_TIME = 0.05


class SinkFeeder:
    """Feeds the sinks of one recording, at intervals, on a daemon thread."""

    def __init__(
        self, recording: object, environment: Mapping[str, Any], deadline_s: float
    ) -> None:
        self._tap = Tap(recording)
        self._tail = RunTail(environment)
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
            self._tap.close()
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
                update = self._tail.look(self._tap.take(), final)
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
