# SPDX-License-Identifier: Apache-2.0
"""`allow_sync`: waits that the program means to make."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _ThisThread(threading.local):
    allowing_regions = 0


_this_thread = _ThisThread()


@contextlib.contextmanager
def allow_sync() -> Iterator[None]:
    """Mark the waits in this block, on this thread, as intended: they count as blocked time, but
    are not listed and do not trigger `--fail-on-sync`."""
    _this_thread.allowing_regions += 1
    try:
        yield
    finally:
        _this_thread.allowing_regions -= 1


def is_sync_allowed() -> bool:
    """Return whether the calling thread is in such a block."""
    return _this_thread.allowing_regions > 0
