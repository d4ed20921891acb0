# SPDX-License-Identifier: Apache-2.0
"""Memory of PyTorch's allocator by phase, out of memory, and energy, beside what PyTorch says."""

import gc
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.core.nvml import EnergyCounter, NvmlError, reader_in_use
from tests.helpers.script import run_script

MIB = 1 << 20
FAR_TOO_MUCH = 1 << 45


def memory_of(run: pig.Run) -> Memory:
    assert run.memory is not None
    return run.memory


def use(size: int, kept: list[torch.Tensor], keep: int) -> None:
    """Has `size` bytes in use at most, in two pieces, and leaves `keep` behind."""
    kept.append(torch.empty(keep, dtype=torch.uint8, device="cuda"))
    first = torch.empty((size - keep) // 2, dtype=torch.uint8, device="cuda")
    second = torch.empty_like(first)
    del first, second


PHASES = {"data": (10 * MIB, 3 * MIB), "forward": (64 * MIB, 20 * MIB), "backward": (96 * MIB, 0)}


def test_peaks_are_those_of_a_manual_reset() -> None:
    torch.cuda.empty_cache()
    kept: list[torch.Tensor] = []
    expected = {}
    for name, (size, keep) in PHASES.items():
        torch.cuda.reset_peak_memory_stats()
        use(size, kept, keep)
        expected[name] = (torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())
    kept.clear()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with pig.record() as recording, gpu_step():
        for name, (size, keep) in PHASES.items():
            with gpu_phase(name):
                use(size, kept, keep)
    memory = memory_of(recording.run)

    assert memory.device == torch.cuda.current_device()
    found = {path: (phase.peak_bytes, phase.end_bytes) for path, phase in memory.phases.items()}
    assert found == expected
    assert all(phase.peak_is_exact for phase in memory.phases.values())
    assert memory.phases["data"].begin_bytes == before
    # The program's own counters are as it would see them without us.
    assert torch.cuda.max_memory_allocated() == memory.peak_bytes == expected["backward"][0]
    assert torch.cuda.max_memory_reserved() == memory.reserved_peak_bytes
    assert memory.points["allocated_bytes"].tolist() == [torch.cuda.memory_allocated()]
    assert memory.points["reserved_bytes"].tolist() == [torch.cuda.memory_reserved()]


def test_exact_peaks_are_those_of_a_manual_reset_and_the_program_sees_none() -> None:
    def run() -> tuple[int, dict[str, Any]]:
        """What the program sees of its peaks after two steps that are alike."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        kept: list[torch.Tensor] = []
        for _ in range(2):
            kept.clear()
            with gpu_step():
                for name, (size, keep) in PHASES.items():
                    with gpu_phase(name):
                        use(size, kept, keep)
        stats = torch.cuda.memory_stats()
        return stats["allocated_bytes.all.peak"], {
            name: value for name, value in stats.items() if name.endswith(".peak")
        }

    expected = {}
    kept: list[torch.Tensor] = []
    for name, (size, keep) in PHASES.items():
        torch.cuda.reset_peak_memory_stats()
        use(size, kept, keep)
        expected[name] = torch.cuda.max_memory_allocated()
    kept.clear()
    run()  # whatever is allocated at the first use is
    without = run()
    with pig.record(memory="exact") as recording:
        assert run() == without
    assert torch.cuda.max_memory_allocated() == without[0]
    assert torch.accelerator.max_memory_allocated() == without[0]
    memory = memory_of(recording.run)
    assert (memory.steps, memory.notes) == (2, ())
    assert all(phase.peak_is_exact for phase in memory.phases.values())
    assert {path: phase.peak_bytes for path, phase in memory.phases.items()} == expected
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def test_a_peak_that_did_not_rise_lies_within_its_bounds() -> None:
    del_me = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del del_me
    counter = torch.cuda.max_memory_allocated()
    kept: list[torch.Tensor] = []
    with pig.record() as recording, gpu_step(), gpu_phase("forward"):
        use(32 * MIB, kept, 8 * MIB)
    phase = memory_of(recording.run).phases["forward"]
    assert not phase.peak_is_exact
    assert phase.peak_bytes == torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == counter


def test_readings_within_a_capture() -> None:
    side = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pig.record() as recording, gpu_step(), gpu_phase("capture"):
        capture = torch.cuda.graph(graph)
        with capture, gpu_phase("inside"):
            result = side * 2
    graph.replay()
    torch.cuda.synchronize()
    assert result.sum().item() == 2048
    assert set(memory_of(recording.run).phases) == {"capture", "capture/inside"}


def test_out_of_memory_is_in_the_file_before_the_exception_leaves(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    with pig.record(path) as recording:
        with gpu_step():
            pass
        with gpu_step(), gpu_phase("forward"):
            allocated = torch.cuda.memory_allocated()
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(FAR_TOO_MUCH, dtype=torch.uint8, device="cuda")
            (event,) = memory_of(pig.Run.load(path)).out_of_memory
    assert (event.path, event.step) == ("forward", 1)
    assert event.device == torch.cuda.current_device()
    assert event.request_bytes >= FAR_TOO_MUCH
    assert event.allocated_bytes == allocated >= kept.numel()
    assert event.reserved_bytes is not None
    assert event.reserved_bytes >= event.allocated_bytes
    assert 0 < event.free_bytes <= event.limit_bytes < FAR_TOO_MUCH
    assert recording.run.report(verbose=True, width=200).startswith("GPU ")


class _TooMuch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty(FAR_TOO_MUCH, dtype=torch.uint8, device="cuda")


def test_out_of_memory_in_backward_names_the_phase_of_the_step() -> None:
    x = torch.ones(3 * MIB, device="cuda", requires_grad=True)
    gc.collect()  # graphs of other tests
    with pig.record() as recording, gpu_step():
        loss = _TooMuch.apply(x.exp()).sum()  # type: ignore[no-untyped-call]
        with gpu_phase("backward"), pytest.raises(torch.OutOfMemoryError):
            loss.backward()
    (event,) = memory_of(recording.run).out_of_memory
    assert (event.path, event.step) == ("backward", 0)
    assert event.holders is not None
    assert (event.holders.activations_bytes, event.holders.unseen) == (4 * 3 * MIB, 0)


def test_a_recording_that_began_before_cuda_notices_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    run_script(f"""
import pyinstrument_gpu as pig
with pig.record({str(path)!r}):
    import torch
    assert not torch.cuda.is_initialized()
    with pig.gpu_phase("load"):
        try:
            torch.empty({FAR_TOO_MUCH}, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
""")
    (event,) = memory_of(pig.Run.load(path)).out_of_memory
    assert event.path == "load"
    assert event.step is None


def test_energy_is_plausible() -> None:
    try:
        found = reader_in_use(EnergyCounter)
    except NvmlError as error:
        pytest.skip(f"needs NVML and a GPU with an energy counter: {error}")
    assert found is not None
    found[1].close()
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
    begin_s = time.monotonic()
    with pig.record(energy=True) as recording:
        while time.monotonic() - begin_s < 1.5:
            with gpu_step(), gpu_phase("multiply"):
                for _ in range(20):
                    matrix @ matrix
                torch.cuda.synchronize()
    (gpu,) = recording.run.energy
    assert gpu.device == torch.cuda.current_device()
    assert len(gpu.samples) >= 5
    assert gpu.joules is not None
    # No GPU that has the counter idles below 5 W, and none takes more than 2 kW.
    assert 5 < gpu.joules / gpu.seconds < 2000
