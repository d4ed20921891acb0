# SPDX-License-Identifier: Apache-2.0
"""Functions of ours that are called between two steps."""

from collections.abc import Iterator

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    native.forget_step_calls()


def test_a_call_comes_before_the_step_it_was_asked_for() -> None:
    calls: list[str] = []
    with pig.record():
        native.call_before_step(lambda: calls.append("called"), after=2)
        for number in range(4):
            with pig.gpu_step():
                calls.append(f"step {number}")
    assert calls == ["step 0", "step 1", "called", "step 2", "step 3"]


def test_a_call_may_ask_for_the_next() -> None:
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        native.call_before_step(again, after=1)

    with pig.record():
        native.call_before_step(again)
        for _ in range(6):
            with pig.gpu_step():
                pass
    assert calls == [0, 1, 2]


def test_steps_within_steps_and_without_a_recording_do_not_count() -> None:
    calls: list[str] = []
    native.call_before_step(lambda: calls.append("called"))
    with pig.gpu_step():
        calls.append("not recorded")
    native.forget_step_calls()
    with pig.record(), pig.gpu_step():
        native.call_before_step(lambda: calls.append("called"))
        with pig.gpu_step():
            calls.append("within")
    assert calls == ["not recorded", "within"]


def test_what_a_call_raises_does_not_reach_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: reported.append(what.exc_value))
    error = RuntimeError("ours")

    def fail() -> None:
        raise error

    with pig.record() as recording:
        native.call_before_step(fail)
        with pig.gpu_step():
            pass
    assert reported == [error]
    assert len(recording.run.steps.closed) == 1
