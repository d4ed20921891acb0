# SPDX-License-Identifier: Apache-2.0
"""The code that runs in a worker of a DataLoader, around torch's own loop.

The worker makes batches as it would without this. Its queues note when it gets the indices of a
batch and when it hands the batch over, and the native module samples its stack, as it does that of
the main thread in the main process: nothing of the dataset, its transforms or its collate function
is touched. What was noted goes into a table in memory that is shared with the recording.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType
from typing import Any

from pyinstrument_gpu.aspects.loader import MOST_BATCHES, MOST_LINES, MOST_TEXT
from pyinstrument_gpu.aspects.loader.worker_memory import MUCH_BYTES, largest_field, private_bytes
from pyinstrument_gpu.aspects.loader.worker_table import WorkerTable
from pyinstrument_gpu.core.record import numbered_places
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER

_FIRST_NS, _EVERY_NS = 50_000_000, 1_000_000_000
"""From one time that a worker writes to the next: at first, and at last."""
_COST_SHARE = 500
"""It writes so seldom that this takes at most this part of the time."""
_LONG, _OWN_SHARE, _LONG_SAMPLES = 2, 4, 5
"""A batch is long if it takes so many times the mean. What it did is known if so many samples found
it, and if what came before it, since the last look at them, took no more than one part in so many.
"""
_KEPT_LONG = 16
"""How many of these a worker tells of."""
_HISTORY_SPANS, _LOG_BYTES = 64, 1 << 16
"""Of the recorder in the worker, whose history nobody reads."""
_PAGE_BYTES = resource.getpagesize()
_NS_PER_GIB, _MEMORY_SHARE = 15_000_000, 100
"""What it costs to read how much memory is the worker's alone, and which part of its life that is
at most, each time."""
_MODULE = "torch.utils.data._utils.worker"
_NO_BATCH = {_MODULE, "torch._utils"}
"""Modules of what a worker puts into the queue at the end of an iterable dataset, to begin another
epoch, and for an exception."""
_INDEX_QUEUE, _DATA_QUEUE, _BASE_SEED, _WORKER, _WORKERS = 2, 3, 8, 10, 11
"""Places of the arguments of torch's loop."""


class WorkerLoop:
    """Stands for torch's loop of a worker while a recording goes on. It can be pickled, for workers
    that are not forked.

    Args:
        original: torch's; None in a process that was not forked, where it is in its place.
        recorder: the process that records; None in one that was not forked from it.
    """

    def __init__(
        self,
        table: WorkerTable,
        original: Callable[..., None] | None = None,
        recorder: int | None = None,
    ) -> None:
        self.original = original
        self._table = table
        self._recorder = recorder

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerLoop, (self._table,)

    def __call__(self, *args: Any, **options: Any) -> None:
        loop = self.original
        if loop is None:
            loop = sys.modules[_MODULE]._worker_loop
        watched = None
        with suppress(Exception):
            # Workers of a worker are not the recording's, nor is what isn't called as torch does.
            if self._recorder in (None, os.getppid()) and not options:
                watched = _WatchedWorker(self._table, args, self._recorder is not None)
        try:
            loop(*args, **options)
        finally:
            if watched is not None:
                with suppress(Exception):
                    watched.end()


class _WatchedWorker:
    """A watched worker, in its own process. It owns the recorder there, in which nothing but the
    sampling of the stack is used.

    Args:
        is_forked: whether its dataset has the address that it has in the recording's process.
    """

    path = _path = None

    def __init__(self, table: WorkerTable, args: tuple[Any, ...], is_forked: bool) -> None:
        self.facts: dict[str, Any] = {}
        self.watchers: dict[str, Any] = {}
        slot = table.claim()
        if slot is None:
            raise OSError("there is no slot")
        self._slot = slot
        slot.begins(0, 0)
        self._is_forked = is_forked
        self._grown_bytes: int | None = None
        self._dataset = dataset = args[1]
        self._known: dict[str, Any] = {
            "worker": args[_WORKER],
            "process": os.getpid(),
            "workers": args[_WORKERS],
            "dataset": type(dataset).__qualname__[:MOST_TEXT],
            "address": id(dataset) if is_forked else 0,
            "iterator": args[_BASE_SEED],
            "epochs": 1,
            "began_ns": time.perf_counter_ns(),
        }
        self._batches: deque[tuple[int, int, int]] = deque(maxlen=MOST_BATCHES)
        self._count = self._making_ns = self._waiting_ns = self._longest_ns = 0
        self._long: deque[tuple[int, int, list[tuple[int, int]]]] = deque(maxlen=_KEPT_LONG)
        self._seen: list[tuple[int, int]] = []
        self._seen_ns = self._look_ns = 0
        self._ready_ns: int | None = None
        self._begin_ns = 0
        self._before = _counted()
        self._next_ns, self._every_ns = 0, _FIRST_NS
        self._is_sampled = False
        self._stacks: dict[str, Any] | None = None
        if native.start(
            self,
            None,
            b"{}",
            overwrite=False,
            history_spans=_HISTORY_SPANS,
            max_bytes=_LOG_BYTES,
            nvtx=False,
            watchdog_ns=0,
        ):
            main = threading.main_thread().ident or 0
            self._is_sampled = native.start_stacks(main, os.fsencode(OWN_FOLDER), True)
        self._wait = native.gpu_phase("wait for the loop")
        indices, made = args[_INDEX_QUEUE], args[_DATA_QUEUE]
        self._get, self._put = indices.get, made.put
        indices.get, made.put = self._gets, self._puts

    def end(self) -> None:
        """Note that the worker ends."""
        self._write(time.perf_counter_ns())
        self._make_way()

    def _make_way(self) -> None:
        """Stop recording, as the worker ends, or the dataset starts a recording of its own."""
        if native.owner() is self:
            self._stacks = self._sampled()
            self._is_sampled = False
            native.stop_stacks()
            native.stop(self, None)
            native.release(self)

    def _sampled(self) -> dict[str, Any] | None:
        return _tree(self._long) if self._is_sampled else self._stacks

    def _tell_of_program(self) -> dict[str, Any]:
        """Return nothing: nobody asks for what a recording knows of the program."""
        return {}

    def _gets(self, *args: Any, **options: Any) -> Any:
        began_ns = time.perf_counter_ns()
        self._slot.begins(0, 0)  # also where an iterable dataset has ended, and makes none
        if self._ready_ns is None:
            self._ready_ns = began_ns
            self._before = _counted()
        asked = None
        with self._wait:
            try:
                asked = self._get(*args, **options)
                return asked
            finally:
                self._begin_ns = time.perf_counter_ns()
                self._waiting_ns += self._begin_ns - began_ns
                if self._begin_ns - self._seen_ns >= _COST_SHARE * self._look_ns:
                    self._look()
                if type(asked) is tuple and type(asked[0]) is int:
                    self._slot.begins(asked[0], self._begin_ns)

    def _puts(self, made: Any, *args: Any, **options: Any) -> Any:
        end_ns = time.perf_counter_ns()
        result = self._put(made, *args, **options)
        number = made[0]
        if type(number) is int and type(made[1]).__module__ not in _NO_BATCH:
            took_ns = end_ns - self._begin_ns
            if self._making_ns and took_ns * self._count >= _LONG * self._making_ns:
                self._keep_long(end_ns)
            self._count += 1
            self._making_ns += took_ns
            self._longest_ns = max(self._longest_ns, took_ns)
            self._batches.append((number, self._begin_ns, end_ns))
        elif type(number) is not int:  # another epoch begins, which numbers its batches anew
            self._batches.clear()
            self._known["epochs"] += 1
        if self._next_ns <= end_ns:
            with suppress(Exception):
                self._write(end_ns)
        return result

    def _look(self) -> None:
        """Read how often samples have found each node, and for how long, before the next batch."""
        with suppress(Exception):
            if self._is_sampled:
                began_ns = time.thread_time_ns()
                self._seen = [(node[2], node[3]) for node in native.stacks()["nodes"]]
                self._look_ns = time.thread_time_ns() - began_ns
                self._begin_ns = self._seen_ns = time.perf_counter_ns()

    def _keep_long(self, end_ns: int) -> None:
        """Keep where samples have found the batch that ends, which took much longer than usual."""
        took_ns = end_ns - self._begin_ns
        is_own = (end_ns - self._seen_ns) * (_OWN_SHARE - 1) <= took_ns * _OWN_SHARE
        if not (self._is_sampled and is_own and took_ns >= _COST_SHARE * self._look_ns):
            return
        with suppress(Exception):
            nodes = native.stacks()["nodes"]
            seen = self._seen + [(0, 0)] * (len(nodes) - len(self._seen))
            more = [
                (node[2] - samples, node[3] - time_ns, number)
                for number, (node, (samples, time_ns)) in enumerate(zip(nodes, seen, strict=True))
                if node[2] > samples
            ]
            if sum(samples for samples, _, _ in more) >= _LONG_SAMPLES:
                more.sort(key=lambda one: -one[1])
                lines = [(number, time_ns) for _, time_ns, number in more[:MOST_LINES]]
                self._long.append((self._begin_ns, end_ns, lines))

    def _memory(self, faults: int) -> dict[str, Any]:
        """Return the memory that a forked worker has copied or made since it was forked, and which
        part of the dataset it may be, where it is much. To ask the kernel takes it milliseconds in
        a large process, so that waits for page faults that can be so much, and for its time."""
        lived_ns = time.perf_counter_ns() - self._known["began_ns"]
        resident_bytes = (_number_in("/proc/self/statm") or 0) * _PAGE_BYTES
        costs_ns = resident_bytes * _NS_PER_GIB >> 30
        is_wanted = self._is_forked and faults * _PAGE_BYTES >= MUCH_BYTES
        if not is_wanted or costs_ns * _MEMORY_SHARE > lived_ns:
            return {"grown_bytes": self._grown_bytes}
        self._grown_bytes = grown_bytes = private_bytes()
        if (grown_bytes or 0) >= MUCH_BYTES and "largest" not in self._known:
            self._known["largest"] = None
            with suppress(Exception):
                self._known["largest"] = largest_field(self._dataset)
        return {"grown_bytes": grown_bytes}

    def _write(self, now_ns: int) -> None:
        known = {
            **self._known,
            "ready_ns": self._ready_ns,
            "batches": self._count,
            "making_ns": self._making_ns,
            "waiting_ns": self._waiting_ns,
            "longest_ns": self._longest_ns,
            **(counted := _since(self._before)),
            **self._memory(counted["minor_faults"] or 0),
            "newest": list(self._batches),
            "stacks": self._sampled(),
        }
        if not self._slot.write(known, now_ns):
            self._slot.write({**known, "stacks": None}, now_ns)
        cost_ns = time.perf_counter_ns() - now_ns
        # At first it is no matter what that costs: many workers live for few batches.
        is_steady = self._every_ns == _EVERY_NS
        self._next_ns = now_ns + max(self._every_ns, _COST_SHARE * cost_ns * is_steady)
        self._every_ns = min(2 * self._every_ns, _EVERY_NS)


def _tree(long: Iterable[tuple[int, int, list[tuple[int, int]]]]) -> dict[str, Any]:
    """The samples of making batches as a tree, as `Loader` has it, and in which lines they found
    long ones."""
    found = native.stacks()
    waits = {
        number
        for number, (parent, place, _, _) in enumerate(found["nodes"])
        if parent < 0 and place >= 0
    }
    numbers: dict[int, int] = {}
    nodes: list[tuple[int, int, int]] = []
    samples = unknown_ns = 0
    for number, (parent, place, count, time_ns) in enumerate(found["nodes"]):
        if parent < 0:
            unknown_ns += time_ns if number not in waits else 0
        elif parent in waits:
            waits.add(number)
        else:
            numbers[number] = len(nodes)
            nodes.append((numbers.get(parent, -1), place, time_ns))
            samples += count
    functions, places = numbered_places(found["places"], _function)
    return {
        "functions": functions,
        "places": places,
        "nodes": nodes,
        "samples": samples,
        "unknown_ns": unknown_ns,
        "long": [
            (begin_ns, end_ns, [(numbers[node], ns) for node, ns in lines if node in numbers])
            for begin_ns, end_ns, lines in long
        ],
    }


def _function(code: CodeType) -> tuple[str, str]:
    name: str = getattr(code, "co_qualname", code.co_name)
    return code.co_filename[-MOST_TEXT:], name[:MOST_TEXT]


def _counted() -> dict[str, int | None]:
    """Return what the kernel has counted so far of the calling thread, and of its process."""
    use, own = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_THREAD)
    cpu_ns = round(1e9 * (own.ru_utime + own.ru_stime))
    return {
        "cpu_ns": cpu_ns,
        "other_cpu_ns": round(1e9 * (use.ru_utime + use.ru_stime)) - cpu_ns,
        "queued_ns": _number_in("/proc/thread-self/schedstat"),
        "read_bytes": _number_in("/proc/self/io"),
        "minor_faults": own.ru_minflt,
        "major_faults": own.ru_majflt,
    }


def _since(before: dict[str, int | None]) -> dict[str, int | None]:
    now = _counted()
    return {
        name: None if value is None or (was := before[name]) is None else max(0, value - was)
        for name, value in now.items()
    }


def _number_in(file: str) -> int | None:
    """The second word of a file of the kernel; None where there is none."""
    with suppress(OSError, ValueError, IndexError), open(file, "rb") as opened:
        return int(opened.read().split()[1])
    return None
