# SPDX-License-Identifier: Apache-2.0
"""A kernel of the program fails in the middle of a recording: from then on every call of the driver
that touches the context answers the same error."""

import warnings
from collections.abc import Iterator

import pytest

from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.simulated_cuda import Result, SimulatedCuda
from tests.helpers.spans import dropped_of

STEPS_BEFORE, STEPS_AFTER = 40, 60


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with attached_cuda() as cuda:
        yield cuda
        assert cuda.violations == []
        assert cuda.blocking_calls == 0


@pytest.mark.parametrize("result", [Result.ILLEGAL_ADDRESS, Result.LAUNCH_FAILED])
@pytest.mark.parametrize("pending", [False, True])
def test_an_error_that_sticks_costs_device_times_and_nothing_else(
    cuda: SimulatedCuda, result: Result, pending: bool
) -> None:
    program = Program(cuda)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with program.recording() as recording:
            for _ in range(STEPS_BEFORE):
                with gpu_step(), gpu_phase("work"):
                    program.work(1_000_000, host_ns=500_000)
                recording.flush(0)
            if not pending:
                cuda.run_dry()
                recording.flush(60)
            cuda.poison(cuda.current_context, result)
            since = cuda.end_of_calls
            for _ in range(STEPS_AFTER):
                with gpu_step(), gpu_phase("work"):
                    cuda.advance(10_000)
                recording.flush(0)
        device_timing.warn()

    (warning,) = caught
    text = str(warning.message)
    assert f"answered CUDA_ERROR_{result.name} ({int(result)})" in text
    assert "device timing is off for GPU 0" in text
    assert "host timing goes on" in text

    run = recording.run
    assert run.phases["work"].count == STEPS_BEFORE + STEPS_AFTER
    timed = int((run.span_device_ns >= 0).sum())
    assert timed == STEPS_BEFORE if not pending else 0 < timed < STEPS_BEFORE
    assert dropped_of(run) == {"device_failed": STEPS_BEFORE + STEPS_AFTER - timed}
    left_out = f"{STEPS_BEFORE + STEPS_AFTER - timed} spans without device time: switched off after"
    assert left_out in " ".join(run.report(width=200).split())

    # The first that fails is the last: then a phase asks for no more than its thread's context.
    calls = cuda.calls(since=since)
    assert [call.result for call in calls if call.result != Result.SUCCESS] == [result]
    assert len([call for call in calls if call.function != "cuCtxGetCurrent"]) <= 10
    assert len(calls) <= 2 * STEPS_AFTER + 10
