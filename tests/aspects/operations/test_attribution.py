# SPDX-License-Identifier: Apache-2.0
"""What is made of the profiler's events, on lists of events with known answers."""

import math
from typing import Any

import pytest

from pyinstrument_gpu.aspects.operations import attribution
from pyinstrument_gpu.aspects.operations.attribution import attribute, device_use, wall_to_run
from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation
from pyinstrument_gpu.aspects.operations.events import DeviceEvent, Events, HostEvent, events_of
from pyinstrument_gpu.aspects.operations.phase_timeline import PhaseSpan, PhaseTimeline

MAIN, ENGINE = 1, 2  # torch's numbers of threads
MAIN_NATIVE, ENGINE_NATIVE = 1001, 1002
NATIVE = {MAIN: MAIN_NATIVE, ENGINE: ENGINE_NATIVE}


def host(
    name: str, begin_ns: int, end_ns: int, correlation: int, thread: int = MAIN, **rest: Any
) -> HostEvent:
    return HostEvent(name, begin_ns, end_ns, thread, NATIVE[thread], correlation, **rest)


def phases(*spans: tuple[str, int, float]) -> PhaseTimeline:
    """Phases of the main thread; one inside another has a path of two names."""
    return PhaseTimeline(
        PhaseSpan(MAIN_NATIVE, path, path.count("/"), begin_ns, end_ns)
        for path, begin_ns, end_ns in spans
    )


def same_clock(time_ns: int) -> float:
    return time_ns


def test_self_times_and_phases_of_nested_operations() -> None:
    events = Events(
        host=[
            host("aten::linear", 100, 200, 1),
            host("aten::t", 110, 120, 2),
            host("aten::addmm", 120, 190, 3),
            host("aten::copy_", 130, 150, 4),
            host("aten::copy_", 135, 140, 8),  # its own name, and nothing else inside
            host("aten::linear", 300, 340, 5),
            host("Optimizer.step#SGD.step", 400, 500, 6, is_annotation=True),
            host("aten::add_", 410, 450, 7),
        ],
        device=[],
        launches=[],
    )
    found = attribute(
        events,
        phases(("forward", 90, 250), ("forward/head", 125, 160), ("optimizer", 390, math.inf)),
        same_clock,
    )
    assert device_use(events.device) is None
    assert set(found) == {
        Operation("aten::linear", "forward", 1, 20, None, None),
        Operation("aten::t", "forward", 1, 10, None, None),
        Operation("aten::addmm", "forward", 1, 50, None, None),
        Operation("aten::copy_", "forward/head", 1, 20, None, None),
        Operation("aten::linear", None, 1, 40, None, None),
        Operation("aten::add_", "optimizer", 1, 40, None, None),
    }
    assert [one.host_ns for one in found] == [50, 40, 40, 20, 20, 10]


def test_device_times_and_launches() -> None:
    events = Events(
        host=[host("aten::mm", 100, 150, 1), host("aten::relu", 200, 220, 2)],
        device=[
            DeviceEvent(1_300, 1_350, 0, 2),
            DeviceEvent(1_000, 1_100, 0, 1),
            DeviceEvent(1_050, 1_200, 0, 1),  # on another stream
            DeviceEvent(1_360, 1_365, 0, 0),  # launched by nothing that was seen
            DeviceEvent(500, 600, 1, 1),
        ],
        launches=[1, 1, 1, 2, 0],
    )
    found = attribute(events, phases(("forward", 90, 160), ("loss", 190, 230)), same_clock)
    assert set(found) == {
        Operation("aten::mm", "forward", 1, 50, 350, 3),
        Operation("aten::relu", "loss", 1, 20, 50, 1),
        Operation(None, None, 0, 0, 5, 1),
    }
    used = device_use(events.device)
    assert used == DeviceUse(2, busy_ns=200 + 50 + 5 + 100, elapsed_ns=365 + 100)


def test_a_thread_of_autograd_is_in_the_phase_of_the_thread_that_made_its_nodes() -> None:
    node = "autograd::engine::evaluate_function: MmBackward0"
    backward = {"sequence": 7, "forward_thread": MAIN, "is_node": True}
    events = Events(
        host=[
            host("aten::mm", 100, 110, 1, sequence=7),
            host(node, 200, 240, 2, ENGINE, **backward),
            host("aten::mm", 210, 230, 3, ENGINE),
        ],
        device=[],
        launches=[],
    )
    found = attribute(events, phases(("forward", 90, 150), ("backward", 190, 300)), same_clock)
    assert {(one.name, one.path, one.host_ns) for one in found} == {
        ("aten::mm", "forward", 10),
        (node, "backward", 20),
        ("aten::mm", "backward", 20),
    }


def test_what_is_too_much_becomes_one_row_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOST_OPERATIONS", 2)
    events = Events(
        host=[host(f"op{i}", 100 * i, 100 * i + 10 * i, i) for i in range(1, 6)],
        device=[],
        launches=[],
    )
    found = attribute(events, phases(("a", 0, 250), ("b", 250, 350)), same_clock)
    assert found == (
        Operation("op5", None, 1, 50, None, None),
        Operation("op4", None, 1, 40, None, None),
        Operation(None, "b", 1, 30, None, None),
        Operation(None, "a", 2, 30, None, None),
    )


def test_the_phases_of_interleaved_generators() -> None:
    timeline = PhaseTimeline(
        [
            PhaseSpan(1, "a", 0, 10, 30),
            PhaseSpan(1, "a/b", 1, 20, 40),  # outlasts the one around it
            PhaseSpan(1, "c", 0, 40, 50),
            PhaseSpan(1, "never", 0, 60, 60),
        ]
    )
    times = [9, 10, 19, 20, 30, 39, 40, 49, 50, 60]
    paths = [None, "a", "a", "a/b", "a/b", "a/b", "c", "c", None, None]
    assert [timeline.path_at(1, time) for time in times] == paths
    assert timeline.path_at(2, 20) is None


def test_the_wall_clock_is_placed_between_two_readings() -> None:
    run_ns = wall_to_run((1_000, 50_000), (3_000, 51_000))
    assert [run_ns(wall) for wall in (50_000, 50_500, 51_000, 49_500)] == [1_000, 2_000, 3_000, 0]
    assert wall_to_run((5, 7), (5, 7))(10) == 8


class Kineto:
    """An event of Kineto, with the methods that torch gives it."""

    def __init__(self, name: str, kind: str, **values: Any) -> None:
        on_device = kind.startswith(("kernel", "gpu_"))
        defaults = {
            "name": name,
            "activity_type": kind,
            "device_type": "DeviceType.CUDA" if on_device else "DeviceType.CPU",
            "is_user_annotation": "user_annotation" in kind,
            "start_ns": 5,
            "duration_ns": 7,
            "start_thread_id": MAIN,
            "end_thread_id": MAIN,
            "is_async": False,
            "device_resource_id": MAIN_NATIVE,
            "device_index": 0,
            "correlation_id": 3,
            "linked_correlation_id": 0,
            "sequence_nr": -1,
            "fwd_thread_id": 0,
            "scope": 0,
        }
        for method, value in (defaults | values).items():
            setattr(self, method, lambda value=value: value)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_is_read_of_the_events_of_a_gpu(is_old: bool) -> None:
    linked = {"linked_correlation_id": 3}
    node = "autograd::engine::evaluate_function: MmBackward0"
    kineto = [
        Kineto("aten::mm", "cpu_op"),
        Kineto(node, "cpu_op", correlation_id=4, sequence_nr=9, fwd_thread_id=1),
        Kineto("MmBackward0", "cpu_op", correlation_id=5, scope=1),
        Kineto("mine", "user_annotation", correlation_id=6),
        Kineto("aten::is_leaf", "cpu_op"),
        Kineto("a future", "cpu_op", is_async=True),
        Kineto("elsewhere", "cpu_op", end_thread_id=2),
        Kineto("train.py(3): main", "python_function", correlation_id=0),
        Kineto("Activity Buffer Request", "overhead", device_resource_id=0),
        Kineto("cudaDeviceSynchronize", "cuda_runtime"),
        *(
            Kineto(name, kind, **linked)
            for name, kind in (
                ("cudaLaunchKernel", "cuda_runtime"),
                ("cuLaunchKernelEx", "cuda_driver"),
                ("cudaGraphLaunch", "cuda_runtime"),
                ("cudaMemcpyAsync", "cuda_runtime"),
                ("cudaMemsetAsync", "cuda_runtime"),
                ("cudaMalloc", "cuda_runtime"),
                ("gemm", "kernel"),
                ("Memcpy HtoD", "gpu_memcpy"),
                ("Memset", "gpu_memset"),
                ("mine", "gpu_user_annotation"),
            )
        ),
    ]
    if is_old:  # torch 2.11 doesn't tell the type
        for event in kineto:
            del event.activity_type  # type: ignore[attr-defined]
    events = events_of(kineto)
    assert events.host == [
        host("aten::mm", 5, 12, 3),
        host(node, 5, 12, 4, sequence=9, forward_thread=1, is_node=True),
        host("MmBackward0", 5, 12, 5, is_node=True),
        host("mine", 5, 12, 6, is_annotation=True),
    ]
    assert events.launches == [3] * 5
    assert events.device == [DeviceEvent(5, 12, 0, 3)] * 3
