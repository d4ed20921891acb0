# SPDX-License-Identifier: Apache-2.0
"""The moment at which a device has no memory left.

PyTorch's allocator calls observers with the device, the bytes asked for, those that the process may
have at most, and those that are free on the device, before it raises `OutOfMemoryError`. An
observer can't be taken back, so there is one for the process, which passes on what it is given.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.native import native

MOST_EVENTS = 8
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

Listener = Callable[[int, int, int, int], None]

_listener: Listener | None = None
_attached_in: int | None = None  # the process


def listen(listener: Listener | None) -> None:
    """Pass what the allocator reports from now on to `listener`; to nobody if that is None."""
    global _listener
    _listener = listener


def attach() -> None:
    """Have PyTorch report it, as soon as it has initialised CUDA: attaching an observer would
    initialise it. Torch has to be imported. Raises nothing."""
    global _attached_in
    torch: Any = sys.modules.get("torch")
    try:
        if _attached_in == os.getpid() or torch.version.cuda is None:
            return
        _attached_in = os.getpid()
        torch.cuda._lazy_call(_attach)
    except Exception:  # a torch that has no such function: nothing is reported
        return


def _attach() -> None:
    torch: Any = sys.modules["torch"]
    try:
        torch._C._cuda_attach_out_of_memory_observer(observe)
    except Exception:  # in the middle of the program's first use of CUDA
        return


def observe(device: int, request: int, limit: int, free: int) -> None:
    """Observe for the allocator. Raises nothing: that would take the place of the program's
    error."""
    listener = _listener
    if listener is None:
        return
    try:
        listener(device, request, limit, free)
    except KeyboardInterrupt:
        _thread.interrupt_main()
    except BaseException:
        return


class OutOfMemoryLog:
    """The first and the last of the times that a program ran out of memory."""

    def __init__(self) -> None:
        self.count = 0
        self._events: list[dict[str, Any]] = []

    def add(
        self,
        device: int,
        request: int,
        limit: int,
        free: int,
        statistics: Callable[[], object] | None,
        details: Callable[[], dict[str, Any]] = dict,
    ) -> bool:
        """Note one. Returns whether it is worth writing at once: of very many only the first.

        Args:
            details: what else is known of the first one.
        """
        self.count += 1
        path, step, module = native.open_place()
        stats = allocated_and_reserved(statistics)
        event = {
            "path": None if path < 0 else path,
            "step": None if step < 0 else step,
            "module": module,
            "device": device,
            "request_bytes": request,
            "limit_bytes": limit,
            "free_bytes": free,
            "allocated_bytes": stats[0],
            "reserved_bytes": stats[1],
            "monotonic_ns": time.monotonic_ns(),
            "settings": next((os.environ[name] for name in _VARIABLES if name in os.environ), None),
        }
        if self.count == 1:
            with contextlib.suppress(Exception):  # the rest is known nevertheless
                event |= details()
        if len(self._events) == MOST_EVENTS:
            self._events.pop()
        self._events.append(event)
        return self.count <= MOST_EVENTS

    def facts(self) -> dict[str, Any]:
        return {"count": self.count, "events": self._events}


def allocated_and_reserved(
    statistics: Callable[[], object] | None,
) -> tuple[int | None, int | None]:
    """Allocated and reserved bytes, as far as they are known."""
    if statistics is None:
        return None, None
    try:
        stats: Any = statistics()
        allocated, reserved = stats["allocated_bytes"], stats["reserved_bytes"]
        return allocated["all"]["current"], reserved["all"]["current"]
    except Exception:
        return None, None
