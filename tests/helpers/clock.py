# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still until a test moves it."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import _test_clock  # type: ignore[import-not-found]


@contextlib.contextmanager
def fake_clock() -> Iterator[Callable[[int], None]]:
    """Recordings started inside take their time from this clock.

    Yields the function that moves it on by so many ns.
    """
    _test_clock.set_ns(0)
    _test_clock.install()
    try:
        yield _test_clock.advance_ns
    finally:
        _test_clock.remove()


A_SECOND = 1_000_000_000


@contextlib.contextmanager
def clock_of_statistics() -> Iterator[Callable[[int], None]]:
    """The same for `job_statistics`: to wait for statistics, which are written once a second, moves
    the clock too."""
    from pyinstrument_gpu.recording import statistics_feed

    with fake_clock() as advance_ns:
        time_of_waits = SimpleNamespace(monotonic=int, sleep=lambda _: advance_ns(A_SECOND))
        with mock.patch.object(statistics_feed, "time", time_of_waits):
            yield advance_ns
