# SPDX-License-Identifier: Apache-2.0
"""Functions of torch under the hooks are the very objects that they were, and tell the same."""

import contextlib
import copy
import importlib
import inspect
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, dataloader

from tests.helpers.hooked import WAYS, Hooked, seen_alike
from tests.helpers.training import Model, Training

OWNERS: tuple[Any, ...] = (
    *(torch, torch._C, type(torch._C._VariableFunctions), torch._C._nn, torch._C.TensorBase),
    *(torch.Tensor, nn.Parameter, nn.Buffer, nn.Module, Model, functional, nn.utils),
    *(nn.utils.clip_grad, DataLoader, dataloader, dataloader._BaseDataLoaderIter),
    *(dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter),
    *(torch.optim, importlib.import_module("torch.optim.optimizer"), torch.optim.Optimizer),
    *(torch.optim.SGD, torch.optim.LBFGS, lr_scheduler, torch.autograd, torch.autograd.graph),
    *filter(inspect.isclass, vars(lr_scheduler).values()),
    *(torch.autograd.Variable, torch._C._ImperativeEngine, torch.autograd.function.Function),
    *(torch.serialization, torch.amp.GradScaler, torch.cuda, torch.accelerator),
    *(torch.cuda.Stream, torch.cuda.Event, torch.cuda.amp.GradScaler, torch.jit, torch.func),
    *(torch._dynamo, torch.overrides, torch.utils._python_dispatch, warnings, pickle, types),
)
IN_PYTHON = (nn.Module, DataLoader, torch.optim.Optimizer, nn.utils.clip_grad, lr_scheduler)
"""Those of whose functions the source is read, which takes long."""

QUESTIONS = [
    ask for name, ask in inspect.getmembers(inspect, inspect.isfunction) if name.startswith("is")
]
KIND_DIFFERS = sys.version_info[:2] == (3, 11)
"""There, the interpreter calls a function in Python without asking it how it is to be called if its
type is the very `types.FunctionType`. So while hooked it is of one that is derived from it."""


def attributes() -> Iterator[tuple[str, Any]]:
    for owner in OWNERS:
        for name, value in list(vars(owner).items()):
            yield f"{owner!r} {name}", value


def test_every_attribute_is_the_very_object_that_it_was(hooked: Hooked) -> None:
    Training().run()  # imports what it needs
    before = dict(attributes())
    with hooked():
        Training().run()
        during = dict(attributes())
    after = dict(attributes())
    for found in (during, after):
        assert found.keys() == before.keys()
        assert [name for name, value in found.items() if value is not before[name]] == []


def seen(function: Any) -> dict[str, Any]:
    """What a program can ask of a function."""
    names = ("__name__", "__qualname__", "__module__", "__doc__", "__text_signature__", "__dict__")
    found = {name: getattr(function, name, None) for name in (*names, "__wrapped__", "__code__")}
    found["__dict__"] = dict(found["__dict__"] or {})
    for ask in (inspect.signature, pickle.dumps, copy.deepcopy, copy.copy):
        try:
            found[ask.__name__] = ask(function)
        except Exception as error:
            found[ask.__name__] = str(error)
    found.update({ask.__name__: ask(function) for ask in QUESTIONS})
    return {**found, "hash": hash(function), "repr": repr(function)}


def functions() -> list[tuple[str, Any]]:
    """Those among these attributes, and as classes give them out."""
    found = list(attributes())
    for owner in filter(inspect.isclass, OWNERS):
        for name in vars(owner):
            if getattr(owner, name) is (value := getattr(owner, name)):  # not made when asked for
                found.append((f"{owner!r}.{name}", value))
    once = {id(value): (name, value) for name, value in found if inspect.isroutine(value)}
    return list(once.values())


def test_functions_tell_what_they_told() -> None:
    kept = functions()
    known = {id(function) for _, function in kept}
    before = [(name, seen(function)) for name, function in kept]
    for hooked in (*WAYS.values(), contextlib.nullcontext):
        with hooked():
            others = [name for name, function in functions() if id(function) not in known]
            told = [(name, seen(function)) for name, function in kept]
        assert [one for one, other in zip(told, before, strict=True) if one != other] == []
        assert others == []


def test_sources_are_those_of_torch() -> None:
    def observe() -> list[tuple[str, int]]:
        values = [value for owner in IN_PYTHON for value in vars(owner).values()]
        sources = map(inspect.getsourcelines, filter(inspect.isfunction, values))
        return [("".join(lines), at) for lines, at in sources]

    assert len(seen_alike(observe, *WAYS.values())) > 100


def test_types_are_those_without_hooks(hooked: Hooked) -> None:
    kept = [function for _, function in functions()]
    before = [type(function) for function in kept]
    with hooked():
        for function, kind in zip(kept, before, strict=True):
            assert isinstance(function, kind) and function.__class__.__name__ == kind.__name__
            assert type(function) is kind or (KIND_DIFFERS and kind is types.FunctionType)
    assert [type(function) for function in kept] == before
