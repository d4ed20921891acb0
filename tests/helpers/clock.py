# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still until a test moves it."""

import contextlib
from collections.abc import Callable, Iterator

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
