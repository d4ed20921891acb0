# SPDX-License-Identifier: Apache-2.0
"""One core for the thread that measures, the others for the recorder's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_others: set[int] = set()


@contextmanager
def pinned() -> Iterator[None]:
    """Keep this thread on one core in the block."""
    global _others
    cores = os.sched_getaffinity(0)
    own = max(cores)
    _others = cores - {own}
    os.sched_setaffinity(0, {own})
    try:
        yield
    finally:
        _others = set()
        os.sched_setaffinity(0, cores)


@contextmanager
def threads_elsewhere() -> Iterator[None]:
    """Threads that are started in the block are kept off the core to which this thread is pinned.
    With one core, or none pinned, they stay where this thread may run.

    It is they that are moved, and not for a moment this thread: it would find its caches cold.
    """
    before = _thread_ids()
    yield
    if _others:
        for thread in _thread_ids() - before:
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, _others)


def _thread_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
