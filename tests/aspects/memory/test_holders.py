# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory when there is none left, of real models on the CPU."""

import gc
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.aspects.memory import holders, out_of_memory
from pyinstrument_gpu.aspects.memory.data import ModuleBytes, OutOfMemory, OutOfMemoryHolders
from pyinstrument_gpu.aspects.memory.saved_tensors import SavedTensors
from tests.aspects.memory.test_memory import memory_of, recording_of
from tests.helpers.allocator import SimulatedDevice

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_objects_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = gc.get_objects()  # none of them is freed, and its address given to another, meanwhile
    earlier = {id(one) for one in kept}
    everything = gc.get_objects

    def later() -> list[Any]:
        assert kept
        return [one for one in everything() if id(one) not in earlier]

    monkeypatch.setattr(gc, "get_objects", later)


def trained() -> tuple[Any, Any]:
    """A model of which all is known, after a step: 60 bytes of parameters and as many of gradients,
    12 of a tied buffer, and the momentum of the first layer's 48 bytes."""
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(3, 1, bias=False)
    )
    model[1].register_buffer("mean", torch.zeros(3))
    model[1].register_buffer("same", model[1].mean[1:])
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    (model[0].weight.sum() + model[1].weight.sum()).backward()
    optimizer.step()
    return model, optimizer


def ran_out(path: Path | None, allocated_bytes: int = 1000) -> tuple[OutOfMemory, str]:
    device = SimulatedDevice()
    device.allocator.allocate(allocated_bytes)
    with recording_of(device, path) as recording, gpu_step():
        out_of_memory.observe(0, 100, 2000, 50)
        out_of_memory.observe(0, 100, 2000, 50)
    first, second = memory_of(recording).out_of_memory
    assert (second.holders, second.snapshot) == (None, None)
    return first, " ".join(recording.run.report(verbose=True, width=500).split())


def test_kinds_and_modules_are_known_to_the_byte(tmp_path: Path) -> None:
    kept = trained()
    event, report = ran_out(tmp_path / "a.gpurun")
    assert event.holders == OutOfMemoryHolders(
        parameters_bytes=60,
        gradients_bytes=60,
        buffers_bytes=12,
        optimizer_state_bytes=48,
        modules=(ModuleBytes("0", 144), ModuleBytes("1", 36)),
        unseen=0,
    )
    assert (
        "Memory was held by workspace and others 820 bytes, parameters 60 bytes, "
        "gradients 60 bytes, optimizer state 48 bytes, buffers 12 bytes; by module: "
        "0 144 bytes, 1 36 bytes"
    ) in report
    assert event.snapshot == "a.gpurun.oom.pickle"
    assert pickle.loads((tmp_path / event.snapshot).read_bytes()) == SimulatedDevice().snapshot()
    del kept


class Transformer(torch.nn.Module):  # type: ignore[misc]
    """Two blocks. With a batch of 5, each linear layer saves its input, and the activation function
    and the output layer share what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(2, 8)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(8, 16, bias=False), torch.nn.ReLU(), torch.nn.Linear(16, 8)
            )
            for _ in range(2)
        )
        self.during = int

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        self.during()
        return x


_SAVED = {  # float32
    "stem": 5 * 2 * 4,
    "blocks.0.0": 5 * 8 * 4,
    "blocks.0": 5 * 16 * 4,
    "blocks": 5 * 8 * 4,  # tanh, between the two blocks
    "blocks.1.0": 5 * 8 * 4,
    "blocks.1": 5 * 16 * 4,
    "blocks.1.2": 5 * 8 * 4,  # tanh, after the last parameter
}


def ran_out_in(model: Any, train: Any) -> tuple[OutOfMemory, str]:
    device = SimulatedDevice()
    device.allocator.allocate(100_000)
    with recording_of(device, None) as recording:
        for _ in gpu_steps(range(1)):
            train(model, lambda: out_of_memory.observe(0, 100, 2000, 50))
    (event,) = memory_of(recording).out_of_memory
    reports = (recording.run.report(verbose=verbose, width=500) for verbose in (True, False))
    long, short = (" ".join(report.split()) for report in reports)
    found = re.search("Memory was held by ([^,]*, [^,]*)", long)
    assert found is not None
    assert f"of 1.95 KiB were free; memory was held by {found[1]}" in short
    return event, long


def test_activations_are_known_to_the_byte_by_module_and_phase() -> None:
    def train(model: Any, runs_out: Any) -> None:
        with gpu_phase("forward"):
            model.during = runs_out
            model(torch.randn(5, 2))

    event, report = ran_out_in(Transformer(), train)
    holders = event.holders
    assert holders is not None
    assert holders.activations_bytes == sum(_SAVED.values())
    assert {one.name: one.bytes for one in holders.activation_modules} == _SAVED
    assert [(one.path, one.bytes) for one in holders.phases] == [("forward", sum(_SAVED.values()))]
    assert holders.unseen == 0
    assert (
        "Activations, by module: blocks.0 320 bytes, blocks.1 320 bytes, blocks.0.0 160 "
        "bytes; by phase: forward 1.29 KiB"
    ) in report


def test_in_a_backward_pass_what_it_has_not_released_is_known() -> None:
    def train(model: Any, runs_out: Any) -> None:
        loss = model(torch.randn(5, 2)).sum()
        model.blocks[1][0].weight.register_hook(lambda _: runs_out())
        loss.backward()

    event, _ = ran_out_in(Transformer(), train)
    assert event.holders is not None
    held = {one.name: one.bytes for one in event.holders.activation_modules}
    # The node whose gradients go on holds its own until it has ended, if it is not the last one.
    left = {"stem", "blocks.0.0", "blocks.0", "blocks"}
    assert {name: held.get(name) for name in left} == {name: _SAVED[name] for name in left}
    assert event.holders.unseen == 0


class Odd(torch.Tensor):  # type: ignore[misc]
    @property
    def grad_fn(self) -> Any:
        raise AssertionError("code of the program has run")


@pytest.mark.parametrize("fails", ["none", "walk"])
def test_what_programs_and_failures_do_spoils_no_more_than_activations(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(model: Any, runs_out: Any) -> None:
        kept = model(torch.randn(5, 2)).as_subclass(Odd)
        assert type(kept) is Odd
        runs_out()

    if fails == "walk":
        monkeypatch.setattr(SavedTensors, "walk", lambda *_: 1 / 0)
    event, _ = ran_out_in(Transformer(), train)
    assert event.holders is not None
    assert event.holders.parameters_bytes > 0
    assert event.holders.activations_bytes == (sum(_SAVED.values()) if fails == "none" else 0)
    assert event.holders.unseen == (0 if fails == "none" else None)


def test_graphs_that_were_kept_are_known() -> None:
    kept: list[Any] = []

    def train(model: Any, runs_out: Any) -> None:
        kept.extend(model(torch.randn(5, 2)) for _ in range(3))
        runs_out()

    event, _ = ran_out_in(Transformer(), train)
    assert event.holders is not None
    assert event.holders.activations_bytes == 3 * sum(_SAVED.values())


def test_nothing_is_said_of_activations_while_another_thread_is_in_a_backward_pass() -> None:
    def train(model: Any, runs_out: Any) -> None:
        loss = model(torch.randn(5, 2)).sum()

        def another(_: object) -> None:
            thread = threading.Thread(target=runs_out)
            thread.start()
            thread.join()

        model.stem.weight.register_hook(another)
        loss.backward()

    event, report = ran_out_in(Transformer(), train)
    assert event.holders is not None
    assert (event.holders.unseen, event.holders.activations_bytes) == (None, 0)
    assert "activations, workspace and others" in report


def test_the_rest_is_unknown_where_less_was_allocated_than_counted() -> None:
    kept = trained()
    event, report = ran_out(None, allocated_bytes=10)
    assert event.snapshot is None
    assert "others" not in report
    del kept


def test_no_module_is_no_answer() -> None:
    event, report = ran_out(None)
    assert event.holders is None
    assert "held by" not in report


@pytest.mark.parametrize("case", ["too large", "fails"])
def test_a_snapshot_that_cannot_be_saved_leaves_no_file(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = trained()
    if case == "too large":
        monkeypatch.setattr(holders, "MOST_SNAPSHOT_BYTES", 10)
    else:
        monkeypatch.setattr(SimulatedDevice, "snapshot", lambda self: 1 / 0)
    event, _ = ran_out(tmp_path / "a.gpurun")
    assert event.snapshot is None
    assert event.holders is not None
    assert [one.name for one in tmp_path.iterdir()] == ["a.gpurun"]
    del kept


def test_a_snapshot_can_be_declined(tmp_path: Path) -> None:
    with pig.record(tmp_path / "a.gpurun", oom_snapshot=False) as recording:
        watch: Any = recording.watchers["memory"]
        watch._find = SimulatedDevice
        out_of_memory.observe(0, 100, 2000, 50)
    assert memory_of(recording).out_of_memory[0].snapshot is None
    assert [one.name for one in tmp_path.iterdir()] == ["a.gpurun"]


class Square(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient * ctx.saved_tensors[0]


@pytest.mark.parametrize("function", [Square.apply, lambda x: x[torch.tensor([0, 1])]])
def test_a_result_kept_after_its_backward_pass_hides_no_other_activations(function: Any) -> None:
    """Torch raises an error where it is asked what these nodes have saved, once it is released."""
    start = torch.zeros(2, requires_grad=True)
    loss = function(start * 1).sum()
    loss.backward()
    kept = torch.zeros(6, requires_grad=True).exp()
    event, _ = ran_out(None)
    assert event.holders is not None
    assert (event.holders.activations_bytes, event.holders.unseen) == (24, 0)
    del kept, loss


def test_what_a_transform_has_wrapped_counts_as_unseen() -> None:
    found = []

    def function(x: Any) -> Any:
        result = x.exp().sum()
        found.append(ran_out(None)[0].holders)
        return result

    torch.func.grad(function)(torch.zeros(6))
    assert [(one.activations_bytes, one.unseen) for one in found if one] == [(0, 1)]
