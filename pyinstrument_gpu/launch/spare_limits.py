# SPDX-License-Identifier: Apache-2.0
"""Room for the report in a process whose program has used up, or lowered, a limit."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

_RECURSION = 1000  # Python's own default


@contextlib.contextmanager
def spare_limits() -> Iterator[None]:
    """Let calls nest as deeply, and as many files be open, as is usual or permitted."""
    recursion = sys.getrecursionlimit()
    sys.setrecursionlimit(max(recursion, _RECURSION))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        with contextlib.suppress(RecursionError):  # deeper than it already is
            sys.setrecursionlimit(recursion)
