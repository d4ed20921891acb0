# SPDX-License-Identifier: Apache-2.0
"""Memory of a run, with a simulated allocator: what is known of each phase, and no more."""

import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import analysis, gpu_phase, gpu_step, gpu_steps
from pyinstrument_gpu.aspects.memory import out_of_memory
from pyinstrument_gpu.aspects.memory.aspect import ASPECT
from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE, MedianBytes, Memory
from pyinstrument_gpu.aspects.memory.fold import (
    MOST_BOUNDARIES,
    MOST_PHASES,
    MOST_POINTS,
    PHASE_BEGIN,
    PHASE_END,
    STEP_BEGIN,
    STEP_END,
    MemoryFold,
    median_with_interval,
)
from pyinstrument_gpu.aspects.memory.growth import memory_growth
from pyinstrument_gpu.aspects.memory.watch import MemoryWatch
from pyinstrument_gpu.aspects.setup_calls.data import SetupCall, SetupCalls
from pyinstrument_gpu.native import native
from tests.helpers.allocator import SimulatedDevice
from tests.helpers.clock import fake_clock


def recording_of(device: SimulatedDevice, path: Path | None = None) -> pig.Recording:
    """A recording in which all steps are read."""
    recording = pig.record(path)
    recording.watchers["memory"] = MemoryWatch(lambda: device, budget=math.inf)
    return recording


def memory_of(recording: pig.Recording) -> Memory:
    memory = recording.run.memory
    assert memory is not None
    return memory


def test_a_peak_that_rose_is_the_phases_own() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    with recording_of(device) as recording:
        for _ in gpu_steps(range(2)):
            with gpu_phase("forward"):
                allocator.allocate(100)
                with gpu_phase("attention"):
                    allocator.allocate(50)
                    allocator.free(50)
            with gpu_phase("backward"):
                allocator.allocate(70)
                allocator.free(170)
    memory = memory_of(recording)
    phases = memory.phases

    assert memory.device == 0
    assert memory.steps == 2
    assert (memory.peak_bytes, memory.reserved_peak_bytes) == (170, 170)
    assert phases["backward"].peak_bytes == 170
    assert phases["backward"].peak_is_exact
    # 150 in the first step, to the byte; in the second all that is known is that it was less than
    # the 170 of before.
    assert phases["forward"].peak_bytes == 150
    assert phases["forward/attention"].peak_bytes == 150
    assert not phases["forward"].peak_is_exact
    assert (phases["forward"].begin_bytes, phases["forward"].end_bytes) == (0, 100)
    assert (phases["forward"].calls, phases["forward"].steps) == (2, 2)


def test_a_peak_that_did_not_rise_is_at_least_what_was_seen() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    allocator.allocate(1000)
    allocator.free(1000)
    with recording_of(device) as recording, gpu_step(), gpu_phase("outer"):
        with gpu_phase("inner"):
            allocator.allocate(30)
        allocator.free(30)
    phases = memory_of(recording).phases

    # Seen at the end of the inner one, which lies in the outer one.
    assert {path: phase.peak_bytes for path, phase in phases.items()} == {
        "outer": 30,
        "outer/inner": 30,
    }
    assert not any(phase.peak_is_exact for phase in phases.values())


def test_the_programs_own_reset_makes_no_peak_exact_that_is_not() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    allocator.allocate(10)
    with recording_of(device) as recording, gpu_step(), gpu_phase("a"):
        allocator.free(5)
        allocator.reset_peak()
    (phase,) = memory_of(recording).phases.values()
    assert phase.peak_bytes == 10
    assert not phase.peak_is_exact


def test_where_the_program_resets_the_peak_none_is_called_exact() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    with recording_of(device) as recording:
        for i in gpu_steps(range(2)):
            with gpu_phase("outer"):
                allocator.allocate(100 if i == 0 else 500)
                allocator.free(100 if i == 0 else 500)
                with gpu_phase("logging"):
                    allocator.reset_peak()
                allocator.allocate(60)
                allocator.free(60)
    phases = memory_of(recording).phases
    # 500 were in use in the second step, which nobody saw.
    assert (phases["outer"].peak_bytes, phases["outer"].peak_is_exact) == (500, False)
    assert not phases["outer/logging"].peak_is_exact


def test_what_phases_leave_behind() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    with recording_of(device) as recording:
        for _ in gpu_steps(range(40)):
            with gpu_phase("outer"):
                allocator.allocate(3)
                with gpu_phase("inner"):
                    allocator.allocate(4)
            allocator.allocate(5)
    memory = memory_of(recording)

    assert memory.phases["outer"].left_bytes == MedianBytes(7, 7, 7)
    assert memory.phases["outer"].own_left_bytes == MedianBytes(3, 3, 3)
    assert memory.phases["outer/inner"].left_bytes == MedianBytes(4, 4, 4)
    assert memory.outside_left_bytes == MedianBytes(5, 5, 5)
    assert memory.points["step"].tolist() == list(range(40))
    assert memory.points["allocated_bytes"].tolist() == [12 * (i + 1) for i in range(40)]
    assert memory.points["reserved_bytes"].tolist() == [12 * (i + 1) for i in range(40)]


@pytest.mark.parametrize("leak", ["forward", "logging", "", None])
def test_a_leak_is_named_with_its_phase(leak: str | None) -> None:
    device = SimulatedDevice()
    allocator = device.allocator

    def keep(where: str) -> None:
        if where == leak:
            allocator.allocate(512)

    with recording_of(device) as recording:
        for i in gpu_steps(range(60)):
            # As if the model's own memory came in the first steps.
            allocator.allocate(10_000 if i < 3 else 0)
            with gpu_phase("forward"):
                keep("forward")
            with gpu_phase("work"):
                allocator.allocate(1000)
                allocator.free(1000)
            with gpu_phase("logging"):
                keep("logging")
            keep("")
    growth = memory_growth(memory_of(recording))

    if leak is None:
        assert growth is None
    else:
        assert growth is not None
        assert growth.path == (leak or None)
        assert growth.is_outside_phases == (not leak)
        assert growth.low_bytes == growth.step_bytes == growth.high_bytes == 512


def test_a_growth_is_told_with_the_lines_that_keep_something() -> None:
    device = SimulatedDevice()
    with recording_of(device) as recording:
        for _ in gpu_steps(range(60)):
            device.allocator.allocate(1 << 20)
    run = recording.run
    calls = [("kept", "total", 21), ("retained", "backward(retain_graph=True)", 16)]
    run.setup_calls = SetupCalls(
        tuple(SetupCall(kind=kind, call=call, file="a.py", line=at) for kind, call, at in calls)
    )
    (found,) = [one for one in ASPECT.failures(run) if "grows" in one.about]
    assert found.evidence == (
        "1.00 MiB per step, left outside phases; the loop adds to total (a.py:21), perhaps tensors "
        "with their graph; backward(retain_graph=True) at a.py:16 keeps what was saved for it "
        "while the graph lives"
    )


def test_where_one_phase_frees_what_another_allocates_no_phase_is_named() -> None:
    device = SimulatedDevice()
    allocator = device.allocator
    with recording_of(device) as recording:
        for _ in gpu_steps(range(60)):
            with gpu_phase("forward"):
                allocator.allocate(5000)
            with gpu_phase("backward"):
                allocator.free(4488)
    growth = memory_growth(memory_of(recording))
    assert growth is not None
    assert (growth.step_bytes, growth.path) == (512, None)
    report = recording.run.report(verbose=True, width=120)
    assert "Memory grows by 512 bytes per step" in report
    assert "this run can't tell which phase leaks it" in report


_MIB = 1 << 20


def read_at(*points: tuple[int, float]) -> Memory:
    """The memory of a process that had so many MiB after these steps."""
    rows = [(step, round(mib * _MIB), -1) for step, mib in points]
    return Memory(points=np.array(rows, MEMORY_POINT_DTYPE))


def test_a_large_growth_shows_in_few_readings_too() -> None:
    # As a program had it that kept all outputs of 900 steps, which took 2 ms each.
    growth = memory_growth(
        read_at((0, 323), (1, 325), (2, 326), (124, 402), (350, 544), (574, 689), (796, 833))
    )
    assert growth is not None
    assert growth.is_of_few
    assert growth.step_bytes == pytest.approx((833 - 402) / (796 - 124) * _MIB)
    assert growth.low_bytes == pytest.approx((544 - 402) / (350 - 124) * _MIB)
    assert growth.high_bytes == pytest.approx((833 - 689) / (796 - 574) * _MIB)


@pytest.mark.parametrize(
    "mib",
    [
        pytest.param((300, 395, 396, 399, 401), id="all of it at first"),
        pytest.param((300, 400, 380, 480, 560), id="it falls, too"),
        pytest.param((300, 310, 320, 330, 340), id="less than 100 MiB"),
        pytest.param((3000, 3100, 3200, 3300, 3400), id="less than a fifth"),
        pytest.param((300, 400, 450, 475, 490), id="slower and slower"),
    ],
)
def test_few_readings_show_no_other_growth(mib: tuple[int, ...]) -> None:
    points = [(100 * place + 50, size) for place, size in enumerate(mib)]
    assert memory_growth(read_at(*points)) is None


def test_three_readings_are_too_few_for_any_growth() -> None:
    assert memory_growth(read_at((0, 300), (1, 301), (300, 600), (600, 900), (900, 1200))) is None


def test_a_step_that_was_dropped_is_none() -> None:
    device = SimulatedDevice()
    with recording_of(device) as recording:
        for _ in range(2):
            for _ in gpu_steps(range(2)):
                device.allocator.allocate(1)
    memory = memory_of(recording)
    assert memory.points["step"].tolist() == [0, 1, 2, 3]
    assert memory.points["allocated_bytes"].tolist() == [1, 2, 3, 4]


def test_a_run_that_goes_on_has_it_too(tmp_path: Path) -> None:
    device = SimulatedDevice()
    with recording_of(device, tmp_path / "a.gpurun") as recording:
        with gpu_step():
            device.allocator.allocate(7)
        memory = recording.snapshot().memory
        assert memory is not None
        assert memory.peak_bytes == 7
    assert memory_of(recording).peak_bytes == 7
    assert memory_of(recording).phases == {}


def test_the_memory_of_the_process_stands_in_without_a_gpu() -> None:
    with pig.record() as recording, gpu_step(), gpu_phase("forward"):
        pass
    memory = memory_of(recording)
    assert memory.device is None
    assert memory.reserved_peak_bytes is None
    assert memory.peak_bytes is not None
    assert 0 < memory.phases["forward"].end_bytes <= memory.peak_bytes


def test_a_device_that_comes_later_takes_over() -> None:
    found: list[SimulatedDevice] = []
    recording = pig.record()
    watch = MemoryWatch(lambda: found[0] if found else None, budget=math.inf)
    recording.watchers["memory"] = watch
    with recording:
        with gpu_step():
            pass
        found.append(SimulatedDevice())
        watch._take()  # as it is called a second later
        with gpu_step():
            found[0].allocator.allocate(9)
    memory = memory_of(recording)
    assert (memory.device, memory.steps, memory.peak_bytes) == (0, 1, 9)


def test_it_can_be_turned_off() -> None:
    with pig.record(memory=False) as recording, gpu_step(), gpu_phase("forward"):
        pass
    assert recording.run.memory is None
    assert "Memory" not in recording.run.report(verbose=True, width=100)


def test_other_modes_are_refused() -> None:
    with pytest.raises(ValueError, match='memory must be "sampled", "exact" or False, got \'all\''):
        pig.record(memory="all")  # type: ignore[arg-type]


def test_a_fork_reads_nothing() -> None:
    device = SimulatedDevice()
    with recording_of(device) as recording:
        with gpu_step():
            pass
        child = os.fork()
        if child == 0:
            native.take_memory_readings()  # the parent's
            with pig.record(memory=False) as own, gpu_step(), gpu_phase("forward"):
                pass
            os._exit(0 if own.run.memory is None and not native.take_memory_readings() else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert memory_of(recording).steps == 1


# Out of memory


def run_out(request: int = 100) -> None:
    """What the allocator calls before it raises."""
    out_of_memory.observe(0, request, 1000, 50)


def test_out_of_memory_is_told_first(tmp_path: Path) -> None:
    device = SimulatedDevice()
    device.allocator.allocate(300)
    device.allocator.free(200)
    path = tmp_path / "a.gpurun"
    with recording_of(device, path) as recording:
        with gpu_step():
            pass
        with gpu_step(), gpu_phase("train"), gpu_phase("forward"):
            run_out()
            # It is in the file before the program goes on.
            (event,) = pig.Run.load(path).memory.out_of_memory  # type: ignore[union-attr]
    assert (event.path, event.step, event.module) == ("train/forward", 1, None)
    assert (event.device, event.request_bytes) == (0, 100)
    assert (event.limit_bytes, event.free_bytes) == (1000, 50)
    assert (event.allocated_bytes, event.reserved_bytes) == (100, 300)
    assert event.time_ns is not None
    assert 0 < event.time_ns <= recording.run.duration_ns
    first, second = recording.run.report(verbose=True, width=500).splitlines()[:2]
    assert first.startswith("GPU 0 ran out of memory in train/forward, in step 1 at ")
    assert first.endswith(
        ": 100 bytes were asked for and 50 bytes of 1000 bytes were free; tensors occupied 100 "
        "bytes of the 300 bytes that PyTorch had reserved"
    )
    assert second.startswith("200 bytes were reserved and not allocated")
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in second


@pytest.mark.parametrize("request_bytes, settings", [(201, ""), (100, "expandable_segments:True")])
def test_advice_needs_numbers_that_call_for_it(
    request_bytes: int, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", settings)
    device = SimulatedDevice()
    device.allocator.allocate(300)
    device.allocator.free(200)
    with recording_of(device) as recording:
        run_out(request_bytes)
    report = recording.run.report(verbose=True, width=500)
    assert report.startswith("GPU 0 ran out of memory outside all phases, outside steps at ")
    assert "expandable_segments" not in report


def test_on_another_thread_the_phase_is_that_of_the_step() -> None:
    device = SimulatedDevice()
    with recording_of(device) as recording, gpu_step(), gpu_phase("backward"):
        thread = threading.Thread(target=run_out)
        thread.start()
        thread.join()
    (event,) = memory_of(recording).out_of_memory
    assert (event.path, event.step) == ("backward", 0)


def test_it_names_the_module_too() -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            run_out()
            return x * 2

    model = torch.nn.Sequential(Block(), torch.nn.ReLU())
    with recording_of(SimulatedDevice()) as recording:
        watch = pig.watch_modules(model)
        with gpu_step():
            model(torch.ones(1))
        watch.remove()
    (event,) = memory_of(recording).out_of_memory
    assert event.module == "0"
    assert "module 0" in recording.run.report(verbose=True, width=500).splitlines()[0]


def test_of_very_many_the_first_and_the_last_are_kept() -> None:
    with recording_of(SimulatedDevice()) as recording:
        for request in range(100):
            run_out(request)
    memory = memory_of(recording)
    assert memory.out_of_memory_count == 100
    assert [event.request_bytes for event in memory.out_of_memory] == [*range(7), 99]
    assert "and 92 more times in between" in recording.run.report(verbose=True, width=100)


def test_nobody_listens_without_a_recording() -> None:
    run_out()
    with pig.record(memory=False) as recording:
        run_out()
    assert recording.run.memory is None


def test_an_error_of_the_watch_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "open_place", lambda: 1 / 0)
    with recording_of(SimulatedDevice()):
        run_out()


def test_retries_count_after_the_first_step() -> None:
    device = SimulatedDevice()
    with recording_of(device) as recording:
        for _ in gpu_steps(range(4)):
            device.allocator.retries += 2
    assert memory_of(recording).allocation_retries == 6
    assert "6 times, PyTorch gave its unused memory back" in " ".join(
        recording.run.report(verbose=True).split()
    )


def test_a_slow_step_in_which_the_allocator_retried_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYINSTRUMENT_GPU_PROC", str(tmp_path))  # of waits nothing is known
    device = SimulatedDevice()
    with fake_clock() as advance, recording_of(device) as recording:
        for step in gpu_steps(range(22)):
            device.allocator.retries += step == 20
            advance(10_000_000 if step >= 20 else 1_000_000)
    found = analysis.of(recording.run).excess
    row = [one.name for one in found.causes].index("allocator_retry")
    # A real page fault may be in it, too.
    others_ns = found.parts_ns.sum(axis=0)[0] - found.parts_ns[row, 0]
    assert found.parts_ns[row].tolist() == [found.excess_ns[0] - others_ns, 0]
    assert others_ns < found.excess_ns[0] / 100
    assert found.is_known[row].tolist() == [True, False]


# What is kept of readings


def reading(
    kind: int, allocated: int = 0, path: int = 0, depth: int = 0, step: int = 0
) -> tuple[int, ...]:
    return (kind, step, path, depth, allocated, allocated, -1, -1, allocated, -1, -1)


def test_a_phase_without_an_end_counts_with_the_one_around_it() -> None:
    fold = MemoryFold(None)
    fold.add(
        [
            reading(STEP_BEGIN),
            reading(PHASE_BEGIN, 0, path=0, depth=0),
            reading(PHASE_BEGIN, 10, path=1, depth=1),
            reading(PHASE_END, 30, path=0, depth=0),
            reading(STEP_END, 30),
        ]
    )
    (phase,) = fold.facts()["phases"]
    assert (phase["path"], phase["calls"], phase["peak_bytes"]) == (0, 1, 30)


def test_of_a_step_that_was_not_read_to_its_end_nothing_is_known_to_be_left() -> None:
    fold = MemoryFold(None)
    inner = [reading(PHASE_BEGIN, 5), reading(PHASE_END, 7)]
    whole = [reading(STEP_BEGIN), *inner, reading(STEP_END, 7)]
    cut = [reading(STEP_BEGIN), *(MOST_BOUNDARIES // 2) * inner, reading(STEP_END, 999)]
    for _ in range(6):
        fold.add(whole)
    fold.add(cut)
    facts = fold.facts()
    assert facts["outside_left_bytes"] == (5, 5, 5)
    assert facts["phases"][0]["left_bytes"] == (2, 2, 2)
    assert facts["phases"][0]["calls"] == 6 + MOST_BOUNDARIES // 2


def test_steps_without_an_end_or_a_begin_are_left_out() -> None:
    fold = MemoryFold(None)
    fold.add([reading(STEP_BEGIN), reading(STEP_BEGIN), reading(STEP_END), reading(STEP_END)])
    assert fold.steps == 1


def test_sizes_are_bounded() -> None:
    fold = MemoryFold(None)
    for step in range(5 * MOST_POINTS):
        fold.add([reading(STEP_BEGIN, step=step), reading(STEP_END, step=step)])
    steps = [point[0] for point in fold.facts()["points"]]
    assert MOST_POINTS / 2 <= len(steps) <= MOST_POINTS
    assert steps == list(range(0, 5 * MOST_POINTS, steps[1]))
    readings = [reading(STEP_BEGIN)]
    for path in range(MOST_PHASES + 5):
        readings += [reading(PHASE_BEGIN, path=path), reading(PHASE_END, path=path)]
    fold.add([*readings, reading(STEP_END)])
    facts = fold.facts()
    assert (len(facts["phases"]), facts["phases_lost"]) == (MOST_PHASES, 5)


def test_the_interval_of_a_median() -> None:
    assert median_with_interval(range(5)) is None
    # Both extremes leave out 2 / 2^6 = 3.1 %.
    assert median_with_interval(range(6)) == (2, 0, 5)
    # As in tables of the sign test: with 20 values the 6th and the 15th.
    assert median_with_interval(range(1, 21)) == (10, 6, 15)
