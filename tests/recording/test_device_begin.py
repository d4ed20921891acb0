# SPDX-License-Identifier: Apache-2.0
"""When device times begin, and when there are none."""

import math
import sys
import types
import warnings
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import (
    Program,
    assert_exact,
)
from tests.helpers.simulated_cuda import (
    exchange_api_capsule,
    simulated_cuda,
)
from tests.helpers.spans import dropped_of


def test_off_means_no_call_after_a_recording_that_was_timed_too(program: Program) -> None:
    cuda = program.cuda
    with program.recording() as recording:
        with gpu_phase("timed"):
            program.work(1_000)
        cuda.run_dry()
        recording.flush(timeout=600)
    before = cuda.end_of_calls
    with pig.record(device_timing=False) as second:
        with gpu_phase("host only"):
            pass
        for _ in range(20):
            cuda.advance(1_000_000_000)
            second.flush(0)
    assert cuda.calls(since=before) == []
    assert second.run.device_clocks == ()


def test_off_means_no_call_at_all(program: Program) -> None:
    with program.recording(device_timing=False) as recording:
        with gpu_phase("work"):
            program.cuda.advance(1_000)
        recording.flush(0)
    assert recording.run.device_timing is None
    assert program.cuda.count("cuCtxGetCurrent") == 0
    assert program.cuda.count("cuEventRecord") == 0


class FakeCuda:
    def __init__(self) -> None:
        self.initialized = False

    def is_initialized(self) -> bool:
        return self.initialized


def fake_torch(cuda_version: str | None) -> Any:
    tensor = type("Tensor", (), {"__dlpack_c_exchange_api__": exchange_api_capsule()})
    return types.SimpleNamespace(
        __version__="2.13.0",
        version=types.SimpleNamespace(cuda=cuda_version),
        cuda=FakeCuda(),
        Tensor=tensor,
    )


def test_device_times_begin_when_pytorch_initialises_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = fake_torch("13.0")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda:
        with pig.record() as recording:
            with gpu_phase("before"):
                cuda.advance(1_000)
            device_timing.attach_if_initialized()
            assert cuda.count("cuCtxGetCurrent") == 0
            torch.cuda.initialized = True
            device_timing.attach_if_initialized()
            with gpu_phase("after"):
                cuda.advance(1_000)
            cuda.run_dry()
        assert (recording.run.span_device_ns >= 0).tolist() == [False, True]


def test_a_cpu_build_of_pytorch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(None)
    torch.cuda.initialized = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda:
        with pig.record():
            with gpu_phase("work"):
                cuda.advance(1_000)
            device_timing.attach_if_initialized()
        assert cuda.count("cuCtxGetCurrent") == 0


def test_rocm_is_not_asked_for_a_cuda_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(None)
    torch.version.hip = "7.0"
    torch.cuda.initialized = True
    monkeypatch.setitem(sys.modules, "torch", torch)
    with simulated_cuda() as cuda, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pig.record() as recording:
            device_timing.attach_if_initialized()
            with gpu_phase("work"):
                cuda.advance(1_000)
        device_timing.warn()
        assert cuda.end_of_calls == 0
    assert dropped_of(recording.run) == {}


def test_a_second_recording_starts_anew(program: Program) -> None:
    for _ in range(3):
        program.expected.clear()
        with program.recording() as recording:
            with program.phase("work"):
                program.work(1_000_000)
            program.cuda.run_dry()
        assert_exact(recording.run, program)
    assert program.cuda.count("cuStreamCreate") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_timing": "on"}, "device_timing must be"),
        ({"device_timing_budget": 0}, "device_timing_budget must be more than 0, got 0"),
        ({"device_timing_budget": math.nan}, "device_timing_budget must be more than 0, got nan"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pig.record(**options)


def test_a_bad_timeout() -> None:
    with pig.record() as recording, pytest.raises(ValueError, match="timeout must be"):
        recording.flush(-1)
