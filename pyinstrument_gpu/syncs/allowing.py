# SPDX-License-Identifier: Apache-2.0
"""Regions in which the program may wait for a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Regions(threading.local):
    depth = 0


_regions = _Regions()


def is_allowed() -> bool:
    """Whether the calling thread is in such a region."""
    return _regions.depth > 0


@contextlib.contextmanager
def allow_sync() -> Iterator[None]:
    """Mark the waits in this block, on this thread, as intended: they count as blocked time, but
    are not listed and do not trigger `--fail-on-sync`."""
    _regions.depth += 1
    try:
        yield
    finally:
        _regions.depth -= 1
