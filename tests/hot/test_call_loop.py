# SPDX-License-Identifier: Apache-2.0
"""The loop that times C functions. Benchmarks rest on it."""

import ctypes

import _call_loop  # type: ignore[import-not-found]
import pytest


def address(name: str) -> int:
    found = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert found is not None
    return found


def test_a_call_takes_as_long_as_the_function() -> None:
    usleep = address("usleep")
    each_ns = _call_loop.each_ns(usleep, [200], 5)
    assert len(each_ns) == 5
    # A little less than what was asked for, as the clocks of both may go differently.
    assert min(each_ns) >= 199_000
    assert _call_loop.total_ns(usleep, [200], 5) >= 995_000


def test_arguments_and_answer() -> None:
    assert _call_loop.answer(address("abs"), [2**32 - 7]) == 7


def test_what_can_not_be_called() -> None:
    with pytest.raises(ValueError, match="address 0"):
        _call_loop.answer(0, [])
    with pytest.raises(ValueError, match="at most 11"):
        _call_loop.answer(address("abs"), [0] * 12)
