# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory when there is none left, of real models on the CPU."""

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects.memory import holders, out_of_memory
from pyinstrument_gpu.aspects.memory.data import MemoryHolders, ModuleBytes, OutOfMemory
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
    assert event.holders == MemoryHolders(
        parameters_bytes=60,
        gradients_bytes=60,
        buffers_bytes=12,
        optimizer_state_bytes=48,
        modules=(ModuleBytes("0", 144), ModuleBytes("1", 36)),
    )
    assert (
        "Memory was held by activations, workspace and others 820 bytes, parameters 60 bytes, "
        "gradients 60 bytes, optimizer state 48 bytes, buffers 12 bytes; of modules, most by "
        "0 144 bytes, 1 36 bytes"
    ) in report
    assert event.snapshot == "a.gpurun.oom.pickle"
    assert pickle.loads((tmp_path / event.snapshot).read_bytes()) == SimulatedDevice().snapshot()
    del kept


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
