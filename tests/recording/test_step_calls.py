# SPDX-License-Identifier: Apache-2.0
"""Our functions that are called between two steps."""

import signal
from typing import Any

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native


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
    with pig.record():
        native.call_before_step(lambda: calls.append("called"))
    with pig.gpu_step():
        calls.append("not recorded")
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


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_a_signal_handler_raises_in_a_call_reaches_the_program(error: BaseException) -> None:
    def handler(*_: object) -> None:
        raise error

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pig.record() as recording, pytest.raises(type(error)) as raised:
            native.call_before_step(lambda: signal.raise_signal(signal.SIGUSR1))
            with pig.gpu_step():
                for _ in range(1000):  # where the interpreter looks for what is pending
                    pass
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert raised.value is error
    assert len(recording.run.steps.array) == 1


def test_a_step_that_turns_out_to_be_none_does_not_count() -> None:
    """The loop asks its loader for one item more than there are."""
    calls: list[str] = []

    def ask_for_the_next() -> None:
        calls.append("before the fourth")
        native.call_before_step(lambda: calls.append("before the fifth"))

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader: Any = torch.utils.data.DataLoader(torch.ones(3, 2))  # type: ignore[arg-type]
    with pig.record() as recording, pig.auto_phases():
        native.call_before_step(ask_for_the_next, after=3)
        for _ in range(2):
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
                calls.append("step")
    assert len(recording.run.steps) == 6
    steps = ["step"] * 6
    assert calls == [*steps[:3], "before the fourth", "step", "before the fifth", *steps[4:]]
