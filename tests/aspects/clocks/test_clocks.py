# SPDX-License-Identifier: Apache-2.0
"""A GPU's clock as a cause of slow steps, with a simulated NVML."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects.clocks.aspect import ASPECT
from pyinstrument_gpu.aspects.clocks.data import HEAT, POWER, decode_clocks
from pyinstrument_gpu.core.cause import Cause
from pyinstrument_gpu.core.gpu_polling import GpuPolling
from pyinstrument_gpu.core.nvml import ClockReader
from pyinstrument_gpu.errors import RunFileDamagedError
from tests.helpers.clock import fake_clock
from tests.helpers.energy import NOT_SUPPORTED, SimulatedNvml

S = 1_000_000_000
IDLE = 0x1


def causes_of(durations_ns: list[int], samples: list[tuple[int, int, int]]) -> list[Cause]:
    """Of a run with such steps, and such readings."""
    with fake_clock() as advance, pig.record() as recording:
        for duration_ns in durations_ns:
            with gpu_step():
                advance(duration_ns)
    document = {"gpus": [{"device": 0, "samples": samples}]}
    clocks = decode_clocks(json.dumps(document).encode(), {"monotonic_ns": 0, "run_ns": 0})
    recording.run.__dict__["clocks"] = clocks
    return list(ASPECT.causes(recording.run))


def test_a_lower_clock_takes_at_most_what_it_is_lower() -> None:
    steps = [
        (S, 2000, 0),
        (S, 2000, POWER),
        (S, 2000, 0),
        (2 * S, 1000, POWER),
        (S, 500, IDLE),  # it had nothing to do
        (4 * S, 1500, POWER | HEAT),
        (S, 2000, 0),
    ]
    now_ns, samples = 0, []
    for duration_ns, mhz, reasons in steps:
        samples.append((now_ns + duration_ns // 2, mhz, reasons))
        now_ns += duration_ns
    [cause] = causes_of([duration_ns for duration_ns, _, _ in steps], samples)
    assert cause.amounts["time_ns"].tolist() == [0, 0, 0, S, 0, S, 0]
    assert cause.words == "a lower clock of the GPU, by the power cap"


def test_steps_far_from_any_reading_are_unknown() -> None:
    [cause] = causes_of([S, S, 9 * S], [(S // 2, 900, 0), (S, 900, 0)])
    assert cause.known is not None
    assert cause.known.tolist() == [0, 1]


@pytest.mark.parametrize("status", [0, NOT_SUPPORTED])
def test_the_thread_loads_nvml_and_reads(status: int) -> None:
    library = SimulatedNvml(status=status)
    library.sm_mhz, library.reasons = 1980, POWER
    find: Callable[[], Any] = lambda: (3, partial(ClockReader, "GPU-1", library))  # noqa: E731
    recording = pig.record()
    recording.watchers["clocks"] = watch = GpuPolling("clocks", find, 1e6)
    with recording, gpu_step():
        pass
    assert watch._thread is None
    assert library.users == 0
    clocks = recording.run.clocks
    if status:
        assert clocks == ()
        return
    assert clocks[0].device == 3
    assert clocks[0].samples[["sm_mhz", "reasons"]].tolist()[-1] == (1980, POWER)


@pytest.mark.parametrize("samples", [[[1, 2]], [[2, 1, 1], [1, 1, 1]], [[1, -1, 0]]])
def test_what_makes_no_sense_is_refused(samples: Any) -> None:
    document = {"gpus": [{"device": 0, "samples": samples}]}
    with pytest.raises(RunFileDamagedError, match="clocks"):
        decode_clocks(json.dumps(document).encode(), {"monotonic_ns": 5, "run_ns": 100})
