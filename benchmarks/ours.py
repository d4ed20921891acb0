# SPDX-License-Identifier: Apache-2.0
"""Our own phases as ways to mark a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from benchmarks.pinning import threads_elsewhere
from benchmarks.way import Way, fresh, kept
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.recording import record
from pyinstrument_gpu.recording.steps import gpu_step


@contextmanager
def recording(**options: Any) -> Iterator[None]:
    """Records host times, or what the options of `record` say. Where this thread is pinned, the
    harvester works on other cores."""
    started = record(**{"device_timing": False, **options})
    with threads_elsewhere():
        started.__enter__()
    try:
        yield
    finally:
        started.stop()


def drain() -> None:
    """Take the spans out of the ring, as the harvester does in a training loop."""
    native.flush(0)


def by_name() -> AbstractContextManager[Way]:
    """`with gpu_phase("x"): pass`, recorded."""
    way = fresh(native.gpu_phase, batch=recording, settle=drain, step=_step)
    return nullcontext(way)


def by_handle() -> AbstractContextManager[Way]:
    """`with handle: pass`, recorded."""
    return nullcontext(kept(native.gpu_phase, batch=recording, settle=drain, step=_step))


def by_scope() -> AbstractContextManager[Way]:
    """`with gpu_phase.scope("x"): pass`, recorded."""
    return nullcontext(fresh(native.gpu_phase.scope, batch=recording, settle=drain, step=_step))


def not_recording() -> AbstractContextManager[Way]:
    """`with gpu_phase("x"): pass` while nothing is recorded."""
    return nullcontext(fresh(native.gpu_phase, step=_step))


def _step(model: object) -> AbstractContextManager[object]:
    return gpu_step()
