# SPDX-License-Identifier: Apache-2.0
"""Reads PyTorch's flight recorder while one recording goes on.

A thread does it, from the moment when the program has a process group of several ranks. Each time
it needs the GIL for some 15 us per operation in the ring, so it waits a thousand times as long
before the next one: what has left the ring by then is counted, and not in the run.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyinstrument_gpu.aspects.collectives import flight_recorder
from pyinstrument_gpu.aspects.collectives.flight_recorder import (
    Dump,
    FlightRecorderError,
    GroupStatus,
)
from pyinstrument_gpu.aspects.collectives.log import Clocks, CollectiveLog
from pyinstrument_gpu.core.watcher import Members, Watcher
from pyinstrument_gpu.native import native

if TYPE_CHECKING:
    from pyinstrument_gpu.aspects.collectives.host_waits import HostWaits

SHORTEST_INTERVAL_S = 1.0
LARGEST_SHARE = 0.001
_PATIENCE_S = 1.0
_MOST_GROUPS = 64

_Progress: TypeAlias = tuple[str, GroupStatus, "str | None"]
"""How far a process group is: its name, and its last operation if that is known."""


def wait_until_next_s(cost_s: float, wall_s: float) -> float:
    """Return how long to wait after a read that cost so much, at that time of the wall's clock.

    In fast training the ring holds less than what is created between two reads. An operation tells
    of waiting only if all ranks have seen it, so they read at the same moments: at multiples of an
    interval, which is a power of two so that the moments of ranks with other costs fall together.
    Where clocks differ, less is seen by all, and nothing is wrong.
    """
    needed = max(1.0, cost_s / LARGEST_SHARE / SHORTEST_INTERVAL_S)
    interval_s = SHORTEST_INTERVAL_S * 2.0 ** math.ceil(math.log2(needed))
    return interval_s - wall_s % interval_s


class CollectiveWatch(Watcher):
    """The watch on collective operations while one recording goes on.

    Args:
        read: what is in the flight recorder, as `flight_recorder.read`.

    """

    def __init__(self, read: Callable[[], Dump] = flight_recorder.read) -> None:
        self._read = read
        self.threads: set[int] = set()
        self._log: CollectiveLog | None = None
        self._waits: HostWaits | None = None
        self._begun = threading.Lock()  # taken by the first to begin, and never given back
        self._reading = threading.Lock()
        self._over = threading.Event()
        self._was_read = False
        self._problem: str | None = None
        self._cost_ns = 0
        self._written: dict[str, Any] | None = None
        self._numbers: dict[str, str] = {}
        self._operations: dict[str, str] = {}

    def has_ranks(self, anchor: Mapping[str, int], members: Members) -> None:
        """Read from now on; where that has begun: nothing."""
        if not self.is_on or not self._begun.acquire(blocking=False):
            return
        self._log = CollectiveLog(Clocks(anchor["run_ns"], anchor["realtime_ns"]), members)
        with contextlib.suppress(Exception):  # of another torch: then waits are not known
            # Not above: it imports torch, which the program has done by now.
            from pyinstrument_gpu.aspects.collectives.host_waits import HostWaits

            self._waits = HostWaits()
            self._waits.install()
        # Not a `threading.Thread`: programs join all of those.
        self.threads.add(_thread.start_new_thread(self._run, ()))

    def stall_facts(self) -> tuple[dict[str, Any], str]:
        progress = self.read(with_unended=True)[:_MOST_GROUPS]
        groups = [[group, *status, operation] for group, status, operation in progress]
        return {"groups": groups}, _last_asked_for(progress)

    def write(self) -> None:
        self.read()

    def end(self) -> None:
        self._over.set()
        if self._waits is not None:
            self._waits.remove()
        self.read(with_unended=True)
        self._recording = None

    def read(self, with_unended: bool = False) -> list[_Progress]:
        """Read what is new. It raises nothing.

        Args:
            with_unended: take also the operations that have not ended.

        Returns:
            How far the process groups are.
        """
        recording, log = self._recording, self._log
        if log is None or not self.is_on:
            return []
        if not self._reading.acquire(timeout=_PATIENCE_S):
            return []
        began_ns = time.thread_time_ns()
        try:
            # A dump asks for events, which would break the captures of other threads.
            dump = native.call_in_relaxed_mode(self._read)
            self._take(recording, log, dump, with_unended)
            progress = self._progress(dump)
        except FlightRecorderError as error:
            progress = []
            self._give_up(recording, str(error))
        except Exception as error:  # it is beside the program
            progress = []
            self._give_up(recording, f"an error of the recorder: {error!r}")
        finally:
            self._cost_ns += time.thread_time_ns() - began_ns
            self._reading.release()
        return progress

    def _run(self) -> None:
        wait_s = 0.0
        while not self._over.wait(wait_s) and self._problem is None:
            if not self.is_on:
                return
            before_ns = self._cost_ns
            self.read()
            wait_s = wait_until_next_s((self._cost_ns - before_ns) / 1e9, time.time())

    def _take(self, recording: object, log: CollectiveLog, dump: Dump, with_unended: bool) -> None:
        items = log.add(dump.entries, Clocks(*native.read_clocks()), with_unended)
        if self._waits is not None:
            items += self._waits.take()
        for entry in dump.entries:
            self._numbers[entry.number] = entry.group
            if not entry.is_p2p:
                self._operations[entry.number] = entry.operation
        # It is on where `run` has said so, also if there is no operation that it knows of.
        if dump.entries or any(map(os.environ.get, flight_recorder.SIZE_VARIABLES)):
            self._was_read = True
        # First what the items refer to.
        self._write(recording)
        if items:
            count = len(items) // log.ITEM_BYTES
            kept = native.append_collectives(recording, items)
            if kept < count:
                log.missed += count - kept
        if with_unended:
            self._write(recording)

    def _progress(self, dump: Dump) -> list[_Progress]:
        return [
            (self._numbers[number], status, self._operations.get(number))
            for number, status in sorted(dump.status.items())
            if number in self._numbers
        ]

    def _give_up(self, recording: object, problem: str) -> None:
        self._problem = problem
        with contextlib.suppress(Exception):
            self._write(recording)

    def _write(self, recording: object) -> None:
        """Bring the document up to date, where there is something new to say."""
        log = self._log
        assert log is not None
        since_ns = -1 if self._waits is None else self._waits.since_ns
        facts = {**log.facts(), "was_read": self._was_read, "waits_since_ns": since_ns, "notes": []}
        if self._problem is not None:
            facts["notes"] = [f"PyTorch's flight recorder was not read: {self._problem}"[:200]]
        if facts != self._written:
            self._written = facts
            document = json.dumps({**facts, "cost_ns": self._cost_ns}).encode()
            native.set_document(recording, "collective_groups", document)


def _last_asked_for(progress: Sequence[_Progress]) -> str:
    asked = [one for one in progress if one[1].enqueued is not None]
    open_ones = [one for one in asked if one[1].enqueued != one[1].completed] or asked
    if not open_ones:
        return ""
    group, status, operation = open_ones[0]
    ended = "" if status.completed is None else f", the last one that ended {status.completed:,}"
    return (
        f"; the last collective operation asked for in group {group} is number "
        f"{status.enqueued:,}{f' ({operation})' if operation else ''}{ended}"
    )


def watcher(options: object) -> Watcher:
    return CollectiveWatch()
