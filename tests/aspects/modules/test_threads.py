# SPDX-License-Identifier: Apache-2.0
"""Backward passes that run on other threads than the one that has called them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native
from tests.helpers.clock import fake_clock
from tests.helpers.timed_modules import Advance, Work


class _Elsewhere(torch.autograd.Function):
    """Its backward is done by another thread, as a GPU's is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, what: Callable[[], None]) -> torch.Tensor:
        ctx.what = what
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        thread = threading.Thread(target=ctx.what, name="autograd")
        thread.start()
        thread.join()
        return grads[0], None


def test_they_hang_under_the_call() -> None:
    with fake_clock() as advance:
        model = nn.Sequential(Work(advance, 0, 0), Work(advance, 0, 0))
        with pig.watch_modules(model, "all") as watch, pig.record() as recording:
            hooks = [native.module_mark(watch._numbers[name], True) for name in "01"]
            (first,), (second,) = (each.values() for each in hooks)

            def pass_by() -> None:
                second(None)
                advance(20_000)
                first(None)
                advance(5_000)

            for _ in range(2):
                with pig.gpu_step(), pig.gpu_phase("backward"):
                    x = torch.ones(4, requires_grad=True)
                    y: Any = _Elsewhere.apply(x, pass_by)  # type: ignore[no-untyped-call]
                    y.sum().backward()
                    advance(1_000)  # it is over
    run = recording.run
    spans = run.module_spans[run.module_spans["host_begin_ns"].argsort()]
    assert {run.paths[path] for path in spans["path"]} == {"backward"}
    assert spans["step"].tolist() == [0, 0, 1, 1]
    # What is open at the end of the pass ends there, on the thread that has called it.
    assert [run.threads[thread].name for thread in spans["thread"]] == [
        "autograd",
        "MainThread",
        "autograd",
        "MainThread",
    ]
    totals = {name: run.modules[name].backward for name in "01"}
    assert {name: one.total_ns for name, one in totals.items() if one is not None} == {
        "0": 10_000,
        "1": 40_000,
    }


def test_threads_that_train_models_of_their_own(advance_ns: int = 1_000) -> None:
    """Their passes are told apart, whatever turns the threads take."""
    with fake_clock() as advance:
        models = [nn.Sequential(Work(advance, advance_ns, advance_ns)) for _ in range(4)]
        watches = [pig.watch_modules(model, "all") for model in models]
        turn = threading.Lock()
        with pig.record() as recording:

            def train(model: nn.Module) -> None:
                for _ in range(50):
                    with turn:
                        loss = model(torch.ones(4)).sum()
                    loss.backward()

            threads = [threading.Thread(target=train, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for watch in watches:
            watch.remove()
    times = recording.run.modules["0"]
    assert times.calls == 200
    assert times.backward is not None
    assert times.backward.count == 200


def test_a_recording_that_ends_within_a_pass(monkeypatch: Any) -> None:
    with fake_clock() as advance:
        recordings: list[pig.Recording] = []

        def advance_and_stop(ns: int) -> None:
            advance(ns)
            if len(recordings) == 1:
                recordings[0].stop()
                recordings.append(pig.start())

        stops: Advance = advance_and_stop
        model = nn.Sequential(Work(advance, 1_000, 2_000), Work(stops, 3_000, 4_000))
        with pig.watch_modules(model, "all"):
            loss = model(torch.ones(4)).sum()
            recordings.append(pig.start())
            loss.backward()
            run = recordings[1].stop()
    assert run.complete
    assert len(recordings[0].run.module_spans) == 0
    model(torch.ones(4))  # nothing is left behind
