# SPDX-License-Identifier: Apache-2.0
"""`watch_modules`: what it watches, what it says, and what it leaves as it was."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from tests.helpers.script import run_script


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def train(model: Any, steps: int = 2) -> Run:
    with pig.record() as recording:
        for _ in range(steps):
            with pig.gpu_step():
                model(torch.ones(3, 4)).sum().backward()
    return recording.run


def test_nothing_is_watched_after_it_is_removed() -> None:
    model = net()
    watch = pig.watch_modules(model, "all")
    assert watch.names == ("0", "1", "2")
    assert train(model).modules["0"].calls == 2
    watch.remove()
    watch.remove()
    run = train(model)
    assert len(run.modules) == 0
    assert len(run.module_spans) == 0


def test_a_model_is_not_kept_alive() -> None:
    model = net()
    pig.watch_modules(model, "all")
    train(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_models_that_come_one_after_the_other() -> None:
    for _ in range(3):
        model = net()
        with pig.watch_modules(model, "all"):
            assert train(model).modules["*"].calls == 6


def test_many_models_beside_one_that_stays() -> None:
    """However many come and go, and at whatever addresses, calls are told apart."""
    stays = net()
    kept = []
    with pig.watch_modules(stays, "all"), pig.record() as recording:
        for i in range(100):
            model = nn.Sequential(*(nn.ReLU() for _ in range(10)), net())
            watch = pig.watch_modules(model, "all")
            model(torch.ones(3, 4))
            watch.remove()
            model(torch.ones(3, 4))
            stays(torch.ones(3, 4))
            if i % 2 == 0:
                kept.append(model)
    calls = {name: recording.run.modules[name].calls for name in ("0", "2", "9", "10.0")}
    assert calls == {"0": 200, "2": 200, "9": 100, "10.0": 100}


def test_a_selection_that_matches_nothing() -> None:
    model = net()
    with pytest.warns(RuntimeWarning, match="no module of Sequential is selected by 'layers'"):
        watch = pig.watch_modules(model, "layers")
    assert watch.names == ()
    with watch:
        run = train(model)
    assert any("no module of Sequential is selected" in note for note in run.notes)


def test_a_model_given_twice() -> None:
    model = net()
    with pig.watch_modules(model, "0|1"):
        with pytest.warns(RuntimeWarning, match="watched already.*names: 0, 1"):
            again = pig.watch_modules(model, "all")
        with again:
            assert again.names == ("2",)
            assert train(model).modules["*"].calls == 6


def test_a_module_that_is_replaced() -> None:
    model = net()
    with pig.watch_modules(model, "all"):
        model[2] = nn.Linear(4, 3)
        run = train(model)
    assert any("was not timed: 2" in note for note in run.notes)
    assert "2" not in run.modules
    assert run.modules["0"].calls == 2


def test_scripted_modules_train_as_before() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(net())
    with pig.watch_modules(model, "all"):
        run = train(model)
    assert any("none of the watched modules was called" in note for note in run.notes)


def test_compiled_modules_train_as_before() -> None:
    model = net()
    with pig.watch_modules(model, "all"):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        run = train(compiled)
    torch._dynamo.reset()
    assert len(run.modules) == 0
    assert any("none of the watched modules was called" in note for note in run.notes)


COMPILED_AUTOGRAD = """
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters

import pyinstrument_gpu as pig

def compiler(graph):
    return torch.compile(graph, backend="eager", fullgraph=True)

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
pig.watch_modules(model, "all", every=1)
with pig.record() as recording:
    with pig.gpu_step():
        model(torch.ones(3, 4)).sum().backward()
    loss = model(torch.ones(3, 4)).sum()
    for _ in range(3):
        with pig.gpu_step(), compiled_autograd._enable(compiler):
            loss.backward()
            loss = model(torch.ones(3, 4)).sum()
run = recording.run
assert not counters["graph_break"], counters
assert run.modules["0"].calls == 5, run.modules["0"].calls
assert run.modules["0"].backward.count == 1
print([note for note in run.notes if note.startswith("compiled autograd")])
"""


def test_compiled_autograd_makes_one_graph_as_before() -> None:
    assert "backward times of modules end where it began" in run_script(COMPILED_AUTOGRAD).stdout


def test_hooks_of_others_are_called_as_before() -> None:
    def calls_of(watched: bool) -> list[str]:
        calls: list[str] = []
        model = net()
        for name, module in model.named_modules():
            module.register_forward_hook(lambda *_, name=name: calls.append(f"forward {name}"))
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(f"before {name}"))
        model[2].register_full_backward_hook(lambda *_: calls.append("backward"))
        watch = pig.watch_modules(model, "all") if watched else None
        train(model)
        if watch is not None:
            watch.remove()
        return calls

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert calls_of(True) == calls_of(False)


def test_gradients_are_the_same() -> None:
    def gradients(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = net()
        watch = pig.watch_modules(model, "all") if watched else None
        train(model)
        if watch is not None:
            watch.remove()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(ours, theirs)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"watch_modules needs a torch\.nn\.Module, got dict"):
        pig.watch_modules({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="select must be a str, got int"):
        pig.watch_modules(net(), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='select must be "coarse", "all" or a regular expression'):
        pig.watch_modules(net(), "layers.(")
