# SPDX-License-Identifier: Apache-2.0
"""`memory="exact"`: each phase's own peak, and a program that sees nothing of the resets."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.aspects.memory.watch import MemoryWatch, TorchAllocator
from tests.helpers import allocator as simulated
from tests.helpers.allocator import DEVICES, TORCH_FUNCTIONS, SimulatedAllocator

torch: Any = pytest.importorskip("torch")
max_memory_allocated = torch.cuda.max_memory_allocated  # imported before any of it is hooked


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> list[SimulatedAllocator]:
    """Two devices without anything allocated, behind the public functions of torch."""
    for name, function in TORCH_FUNCTIONS.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    for name, value in {
        "_cuda_getAllocatorBackend": "native",
        "_accelerator_isAllocatorInitialized": True,
    }.items():
        monkeypatch.setattr(torch._C, name, lambda value=value: value, raising=False)
    monkeypatch.setattr("torch.cuda.memory.is_initialized", lambda: True)
    DEVICES[:] = [SimulatedAllocator(), SimulatedAllocator()]
    for number in range(len(DEVICES)):
        torch.cuda.reset_peak_memory_stats(number)
    return DEVICES


def recording_of(device: int = 0) -> pig.Recording:
    recording = pig.record(memory="exact")
    recording.watchers["memory"] = MemoryWatch(lambda: TorchAllocator(device), exact=True)
    return recording


def memory_of(recording: pig.Recording) -> Memory:
    memory = recording.run.memory
    assert memory is not None
    return memory


def peaks(recording: pig.Recording) -> dict[str, int]:
    """All of them are exact."""
    phases = memory_of(recording).phases
    assert all(phase.peak_is_exact for phase in phases.values())
    return {path: phase.peak_bytes for path, phase in phases.items()}


def use(allocator: SimulatedAllocator, size: int) -> None:
    allocator.allocate(size)
    allocator.free(size)


def seen(device: int) -> dict[str, object]:
    """All that the program can see of the peaks."""
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "allocated, imported earlier": max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
        "statistics": torch.cuda.memory_stats(device),
        "nested": torch.cuda.memory_stats_as_nested_dict(device),
        "itself": torch._C._cuda_memoryStats(device),
        "summary": torch.cuda.memory_summary(device).replace(f"device ID {device}", ""),
        "accelerator": torch.accelerator.memory_stats(device),
        "accelerator, allocated": torch.accelerator.max_memory_allocated(device),
    }


def test_each_phase_has_its_own_peak(devices: list[SimulatedAllocator]) -> None:
    allocator = devices[0]
    use(allocator, 1000)  # before the recording
    with recording_of() as recording:
        for i in gpu_steps(range(5)):
            with gpu_phase("forward"):
                allocator.allocate(100)
                with gpu_phase("attention"):
                    use(allocator, 50 + i)
                use(allocator, 20)
            with gpu_phase("backward"):
                use(allocator, 30)
                allocator.free(100)
            with gpu_phase("optimizer"):
                use(allocator, 7)
            use(allocator, 500)  # in no phase
    assert peaks(recording) == {
        "data": 0,
        "forward": 154,
        "forward/attention": 154,
        "backward": 130,
        "optimizer": 7,
    }
    memory = memory_of(recording)
    assert (memory.steps, memory.peak_bytes, memory.notes) == (5, 1000, ())
    report = recording.run.report(verbose=True, width=120)
    assert ">=" not in report
    assert "154 bytes" in report


def test_a_reset_of_another_device_is_none_of_this_one(devices: list[SimulatedAllocator]) -> None:
    with recording_of() as recording, gpu_step(), gpu_phase("a"):
        use(devices[0], 200)
        with gpu_phase("b"):
            torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(0) == 200
    assert peaks(recording) == {"a": 200, "a/b": 0}


def test_a_private_pool_that_is_gone_is_still_seen(devices: list[SimulatedAllocator]) -> None:
    with recording_of(), gpu_step(), gpu_phase("a"):
        devices[0].use_private_pool(1, 500)
        use(devices[0], 1)
        with gpu_phase("b"):
            pools = torch.cuda.memory_stats_as_nested_dict(0)["reserved_bytes_by_private_pools"]
    assert pools == {(0, 1): {"all": {"current": 0, "peak": 500, "allocated": 500, "freed": 500}}}
    assert devices[0].statistics()["reserved_bytes_by_private_pools"] == {}


def test_what_other_threads_allocate_during_a_reset_makes_a_peak_uncertain(
    devices: list[SimulatedAllocator],
) -> None:
    with recording_of() as recording, gpu_step():
        with gpu_phase("a"):
            use(devices[0], 50)
            simulated.during_reset.append(lambda: use(devices[0], 999))
        with gpu_phase("b"):
            use(devices[0], 20)
        assert not simulated.during_reset
    memory = memory_of(recording)
    found = {path: (each.peak_bytes, each.peak_is_exact) for path, each in memory.phases.items()}
    # It was after the end of the one, and before the begin of the other.
    assert found == {"a": (50, True), "b": (20, True)}
    (note,) = recording.run.notes
    assert note.startswith("at 1 of the resets that exact peaks need, another thread may have used")

    with recording_of() as recording, gpu_step(), gpu_phase("a"):
        use(devices[0], 10)
        simulated.during_reset.append(lambda: use(devices[0], 999))
        with gpu_phase("b"):
            pass
        use(devices[0], 30)
    memory = memory_of(recording)
    found = {path: (each.peak_bytes, each.peak_is_exact) for path, each in memory.phases.items()}
    assert found == {"a": (30, False), "a/b": (0, False)}


def test_an_allocator_that_does_not_count_is_sampled(
    monkeypatch: pytest.MonkeyPatch, devices: list[SimulatedAllocator]
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "cudaMallocAsync")
    use(devices[0], 100)
    with recording_of() as recording, gpu_step(), gpu_phase("a"):
        use(devices[0], 10)
    assert devices[0].peak == 100
    assert not memory_of(recording).phases["a"].peak_is_exact
    (note,) = recording.run.notes
    assert note.startswith(
        "memory was sampled, because exact peaks are not available here: the alloc"
    )


def test_without_a_gpu_memory_is_sampled() -> None:
    with pig.record(memory="exact") as recording, gpu_step(), gpu_phase("a"):
        pass
    memory = memory_of(recording)
    assert (memory.device, memory.steps) == (None, 1)
    (note,) = recording.run.notes
    assert note.startswith(
        "memory was sampled, because exact peaks are not available here: the memory"
    )
    assert note in recording.run.report(verbose=True, width=200)


def test_errors_of_the_program_stay_what_they_are() -> None:
    with recording_of(), gpu_step(), gpu_phase("a"):
        with pytest.raises(IndexError):
            torch._C._cuda_memoryStats(2)
        with pytest.raises(IndexError):
            torch._C._cuda_resetPeakMemoryStats(2)
        with pytest.raises(TypeError):
            torch._C._cuda_memoryStats("0")
        with pytest.raises(TypeError, match="exactly one argument"):
            torch._C._cuda_memoryStats()


class _Program:
    """A program at random, on two allocators at once: one that is recorded, and one that nobody
    else resets."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._alone = SimulatedAllocator()
        self._blocks: list[int] = []
        self._open: list[tuple[str, list[int]]] = []
        self.peaks: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        path = "/".join([each for each, _ in self._open] + [name])
        self._open.append((name, [self._alone.allocated]))
        with gpu_phase(name):
            yield
        _, peak = self._open.pop()
        self.peaks[path] = max(self.peaks.get(path, 0), *peak)

    def run(self, depth: int = 0) -> None:
        for _ in range(self._random.randrange(8)):
            self._one_thing(depth)

    def _one_thing(self, depth: int) -> None:
        chance = self._random.random()
        both = DEVICES[0], self._alone
        if chance < 0.3 and depth < 4:
            with self.phase(self._random.choice("abc")):
                self.run(depth + 1)
        elif chance < 0.6:
            self._blocks.append(self._random.randrange(1, 1000))
            for allocator in both:
                allocator.allocate(self._blocks[-1])
            for _, peak in self._open:
                peak.append(self._alone.allocated)
        elif chance < 0.8 and self._blocks:
            size = self._blocks.pop(self._random.randrange(len(self._blocks)))
            for allocator in both:
                allocator.free(size)
        elif chance < 0.84:
            for allocator in both:
                allocator.empty_cache()
        elif chance < 0.88:
            self._random.choice((torch.cuda, torch.accelerator)).reset_peak_memory_stats(0)
            self._alone.reset_peak()
        else:
            self.look()

    def look(self) -> None:
        with_us = seen(0)
        recorded, DEVICES[1] = DEVICES[1], self._alone
        assert with_us == seen(1)
        DEVICES[1] = recorded


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(each, marks=pytest.mark.thorough) for each in range(8, 20))]
)
def test_any_program_sees_its_own_peaks_and_phases_have_theirs(seed: int) -> None:
    program = _Program(seed)
    with recording_of() as recording:
        program.run()
        program.peaks.clear()  # of phases outside steps nothing is read
        for _ in range(4):
            with gpu_step():
                program.run()
                with program.phase("z"):
                    program.run()
        program.look()
    program.look()
    assert peaks(recording) == program.peaks
