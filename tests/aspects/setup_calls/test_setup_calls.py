# SPDX-License-Identifier: Apache-2.0
"""The lines that make loaders and optimizers, and set modes of torch."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.setup_calls import watch
from pyinstrument_gpu.aspects.setup_calls.data import (
    CollateFunction,
    SetupCall,
    SetupCalls,
)
from pyinstrument_gpu.aspects.setup_calls.watch import _parameters


def line() -> int:
    """The number of the line that calls this."""
    return sys._getframe(1).f_lineno


def calls_of(recording: pig.Recording) -> list[SetupCall]:
    return list(recording.run.setup_calls.calls)


def test_loaders_and_optimizers_have_the_line_that_makes_them() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    weights = [torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=torch.float64)]
    with pig.record() as recording:
        first = line() + 1
        torch.utils.data.DataLoader(data, shuffle=True)
        torch.utils.data.DataLoader(data, batch_size=4)
        for _ in range(2):
            torch.optim.AdamW(weights)
    assert calls_of(recording) == [
        SetupCall(
            kind="loader",
            call="DataLoader",
            file=__file__,
            line=first,
            is_shuffled=True,
            batch_size=1,
        ),
        SetupCall(kind="loader", call="DataLoader", file=__file__, line=first + 1, batch_size=4),
        SetupCall(
            kind="optimizer",
            call="AdamW",
            file=__file__,
            line=first + 3,
            dtypes=("float32", "float64"),
        ),
    ]


def collate(samples: list[Any]) -> Any:
    return torch.stack(samples)


def test_a_loader_has_the_function_of_the_program_that_makes_its_batches() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    with pig.record() as recording:
        torch.utils.data.DataLoader(rows, collate_fn=collate)
        torch.utils.data.DataLoader(rows, collate_fn=torch.stack)
        torch.utils.data.DataLoader(rows)
    line = collate.__code__.co_firstlineno
    made = [one.collate for one in calls_of(recording)]
    assert made == [CollateFunction("collate", __file__, line), None, None]


class AnswersWithItself:
    """Has every attribute, as proxies and mocks do."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, samples: Any) -> Any:
        return samples


def test_what_is_no_plain_function_is_not_looked_into() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    with pig.record() as recording:
        torch.utils.data.DataLoader(rows, collate_fn=AnswersWithItself())
    assert [one.collate for one in calls_of(recording)] == [None]


def test_loaders_of_one_line_are_told_of_together() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 2))

    def loader(is_shuffled: bool, function: Any) -> Any:
        return torch.utils.data.DataLoader(rows, shuffle=is_shuffled, collate_fn=function)

    with pig.record() as recording:
        loader(True, collate)
        loader(False, None)
    (one,) = calls_of(recording)
    assert one.is_shuffled
    assert one.collate is not None
    assert one.collate.function == "collate"


def test_a_class_of_the_program_is_made_where_it_is_called() -> None:
    class Mine(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)

    with pig.record() as recording:
        made = line() + 1
        Mine([torch.zeros(1)])
    assert [(one.call, one.line) for one in calls_of(recording)] == [("Mine", made)]


def test_modes_of_the_program_do_not_see_what_is_asked() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, *_: Any) -> Any:
            raise AssertionError(function)

    weights = [torch.zeros(1)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with Mode():
        assert _parameters(optimizer.param_groups)["dtypes"] == ["float32"]


def test_a_call_that_fails_raises_what_it_raises_and_is_not_noted() -> None:
    with pig.record() as recording:
        with pytest.raises(ValueError, match="empty parameter list"):
            torch.optim.SGD([])
        torch.optim.SGD([torch.zeros(1)], lr=1)
    assert [one.call for one in calls_of(recording)] == ["SGD"]


def test_only_switching_anomaly_detection_on_is_noted() -> None:
    with pig.record() as recording:
        torch.autograd.set_detect_anomaly(False)
        with torch.autograd.set_detect_anomaly(mode=True):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.detect_anomaly()
        torch.set_num_threads(torch.get_num_threads())
        torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")(
            torch.zeros(2, 2)
        ).sum().backward()
    found = [(one.kind, one.call) for one in calls_of(recording)]
    assert found == [  # not torch's own use, where it compiles
        ("anomaly", "set_detect_anomaly"),
        ("anomaly", "detect_anomaly"),
        ("threads", "torch.set_num_threads"),
    ]


def test_only_a_backward_pass_that_keeps_a_graph_of_itself_is_noted() -> None:
    weight = torch.ones(2, requires_grad=True)
    with pig.record() as recording:
        weight.square().sum().backward()
        weight.square().sum().backward(retain_graph=True)
        torch.autograd.grad(weight.square().sum(), weight, create_graph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weight.square().sum().backward(create_graph=True)  # of no step
            for step in range(100):
                with pig.gpu_step():
                    if step == 3:
                        weight.square().sum().backward(create_graph=True)  # now and then
                    if step > 50:
                        line = sys._getframe().f_lineno + 1
                        weight.square().sum().backward(create_graph=True)
    weight.grad = None
    (found,) = calls_of(recording)
    assert (found.kind, found.call) == ("backward", "backward(create_graph=True)")
    assert (found.file, found.line) == (__file__, line)


def test_a_backward_pass_that_keeps_what_was_saved_is_noted_where_steps_have_it() -> None:
    weight = torch.ones(2, requires_grad=True)
    with pig.record() as recording:
        for _ in pig.gpu_steps(range(4)):
            made = line() + 1
            weight.square().sum().backward(retain_graph=True)
    (found,) = calls_of(recording)
    assert (found.kind, found.call, found.line) == ("retained", "backward(retain_graph=True)", made)


def test_autocast_is_noted_where_it_is_on_for_the_cpu() -> None:
    with pig.record() as recording:
        for _ in range(20):
            torch.autocast("cpu", enabled=False)
            made = line() + 1
            with torch.autocast("cpu"):
                pass
    (found,) = calls_of(recording)
    assert (found.kind, found.call, found.line) == ("autocast", "autocast", made)


def test_arrays_of_doubles_are_noted_among_the_first() -> None:
    with pig.record() as recording:
        torch.from_numpy(np.zeros(2, np.float32))
        made = line() + 1
        torch.from_numpy(np.zeros(2))
        for _ in range(100):
            torch.from_numpy(np.zeros(2, np.float32))
        assert torch.from_numpy(np.ones(2)).tolist() == [1, 1]
    (found,) = calls_of(recording)
    assert (found.kind, found.call, found.line) == ("doubles", "torch.from_numpy", made)


def test_an_optimizer_has_the_size_of_its_layers() -> None:
    layer, bias = torch.zeros(3, 4), torch.zeros(4)
    with pig.record() as recording:
        torch.optim.SGD([{"params": [layer, bias]}, {"params": [torch.zeros(2, 2, 5)]}], lr=1)
    (found,) = calls_of(recording)
    assert (found.matrices, found.elements, found.kernels) == (1, 12, 1)


def test_hooks_that_steps_add_and_nobody_removes_are_counted() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pig.record() as recording:
        for _ in range(30):  # in no step: a program sets them up
            other.register_forward_hook(print)
        for _ in pig.gpu_steps(range(45)):
            made = line() + 1
            model.register_forward_hook(print)
            other.register_forward_hook(print).remove()
            torch.ones(2, requires_grad=True).register_hook(print)
    (found,) = calls_of(recording)
    assert (found.kind, found.call, found.line) == ("hooks", "register_forward_hook", made)
    assert found.hooks == 40


def test_hooks_that_are_added_at_once_or_taken_back_are_not_counted() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pig.record() as recording:
        for _ in range(20):
            other.register_forward_hook(print)
        for step in pig.gpu_steps(range(50)):
            with other.register_forward_hook(print):
                pass
            for _ in range(45 if step == 3 else 0):
                model.register_forward_hook(print)
    assert not calls_of(recording)


def test_the_lines_of_the_loop_that_keep_something_are_noted() -> None:
    kept = []
    with pig.record() as recording:
        for number in pig.gpu_steps(range(30)):
            made = line() + 1
            kept.append(torch.ones(number))
    found = calls_of(recording)
    assert [(one.kind, one.call, one.file, one.line) for one in found] == [
        ("kept", "kept", __file__, made)
    ]


def test_a_program_that_the_parser_finds_too_deep_is_recorded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_deep(file: str, line: int) -> None:
        raise RecursionError(file)

    monkeypatch.setattr(watch, "kept_values", too_deep)
    with pig.record() as recording:
        for _ in pig.gpu_steps(range(30)):
            torch.optim.SGD([torch.zeros(1)], lr=1)
    assert [one.call for one in calls_of(recording)] == ["SGD"]


def test_what_is_made_behind_the_recording_is_not_noted_and_is_as_it_was() -> None:
    with pig.record() as recording:
        pass
    constructor = torch.optim.SGD.__init__
    torch.optim.SGD([torch.zeros(1)], lr=1)
    assert not calls_of(recording)
    assert torch.optim.SGD.__init__ is constructor


def test_of_several_lines_only_a_loader_that_shuffles_is_told() -> None:
    training = SetupCall(kind="loader", call="DataLoader", file="a.py", line=1, is_shuffled=True)
    validation = SetupCall(kind="loader", call="DataLoader", file="a.py", line=2)
    assert SetupCalls((validation,)).only("loader") == validation
    assert SetupCalls((training, validation)).only("loader") == training
    assert SetupCalls((validation, validation)).only("loader") is None
    assert SetupCalls((training, training)).only("loader") is None
    assert SetupCalls((training,)).only("optimizer") is None
