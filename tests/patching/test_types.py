# SPDX-License-Identifier: Apache-2.0
"""Classes of torch under the hooks: their slots, which CPython keeps beside their attributes."""

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, dataloader

import pyinstrument_gpu as pig
from tests.helpers.hooked import Hooked, seen_alike
from tests.helpers.host_watch import watched_host
from tests.helpers.training import Model, Training
from tests.helpers.type_slots import is_sequence, slots


class Plain(Tensor):
    """A class of a program's own."""


class Overriding(Tensor):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


class Calling(Model):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Loading(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Updating(torch.optim.SGD):
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)


TENSORS = (torch._C.TensorBase, Tensor, nn.Parameter, nn.Buffer, Plain, Overriding)
OTHERS = (
    *(nn.Module, nn.Linear, nn.CrossEntropyLoss, Model, Calling, DataLoader, Loading),
    *(dataloader._BaseDataLoaderIter, dataloader._SingleProcessDataLoaderIter),
    *(dataloader._MultiProcessingDataLoaderIter, IterableDataset, torch.optim.Optimizer),
    *(torch.optim.SGD, Updating, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler),
    *(torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler.ReduceLROnPlateau),
    *(torch.cuda.Stream, torch.cuda.Event, torch._C._CudaStreamBase, torch._C._CudaEventBase),
    *(torch.autograd.Function, torch._C._FunctionBase, torch._C._ImperativeEngine, object, type),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.MethodWrapperType, type(torch.ones(1).grad_fn)),
)
INDEXING = {"mapping 1", "mapping 2"}
"""`mp_subscript` and `mp_ass_subscript`."""


def all_slots() -> dict[tuple[str, str], int]:
    return {
        (f"{kind.__module__}.{kind.__qualname__}", name): at
        for kind in (*TENSORS, *OTHERS)
        for name, at in slots(kind).items()
    }


def test_slots_are_read_where_they_are() -> None:
    for kind in (*TENSORS, *OTHERS):
        found = slots(kind)
        assert found["tp_basicsize"] == kind.__basicsize__
        assert found["tp_itemsize"] == kind.__itemsize__
        assert found["tp_dictoffset"] == kind.__dictoffset__ % 2**64
        assert found["tp_weaklistoffset"] == kind.__weakrefoffset__ % 2**64
        assert found["tp_flags"] | 1 << 19 == kind.__flags__ | 1 << 19
        assert found["tp_base"] in (id(kind.__base__), 0)
        assert found["tp_mro"] == id(kind.__mro__)


def test_the_hooks_use_two_slots_of_tensors_and_no_other(hooked: Hooked) -> None:
    # A tensor is indexed through these slots, and by no function that could be hooked. A class with
    # an operator of its own calls that one.
    Training().run()
    before = all_slots()
    with hooked():
        Training().run()
        during = all_slots()
    changed = {key for key, at in during.items() if at != before[key]}
    assert {name for kind, name in changed} <= INDEXING
    assert not any("Overriding" in kind for kind, name in changed if name == "mapping 1")
    assert all_slots() == before


def test_a_tensor_is_no_sequence(hooked: Hooked) -> None:
    def observe() -> list[Any]:
        kinds = [torch.ones(2), nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Plain)]
        scalars = [torch.tensor(1.0), torch.tensor(2), 3.0]
        return [*map(is_sequence, kinds), torch.tensor(scalars).tolist()]

    assert seen_alike(observe, hooked) == [False, False, False, [1.0, 2.0, 3.0]]


@pytest.mark.parametrize("outer_first", [False, True])
def test_ways_that_overlap_leave_nothing(outer_first: bool) -> None:
    before = all_slots()
    with pig.record():
        watch, phases = watched_host(), pig.auto_phases()
        ways = [watch, phases] if outer_first else [phases, watch]
        for way in (watch, phases):
            way.__enter__()
        for way in ways:
            way.__exit__(None, None, None)
    assert all_slots() == before
