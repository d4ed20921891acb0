# SPDX-License-Identifier: Apache-2.0
"""Device times against the device's own clock, as kernels read it, and against the host's."""

from time import CLOCK_MONOTONIC_RAW, clock_gettime_ns, perf_counter_ns, sleep

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import pyinstrument_gpu as pig
from pyinstrument_gpu import analysis, gpu_phase, gpu_step
from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.schema import SpanFlag
from tests.gpu.conftest import Timed
from tests.helpers.cuda_kernels import CudaKernels
from tests.helpers.spans import dropped_of

FLUSH_S = 5.0

# Between an event and a kernel next to it on a stream that never runs dry lie the kernel's launch
# on the device and its drain: 1 to 3 us each, twice. The bound leaves room for a busy machine; of
# the longest spans below it is 25 ppm.
GAPS_NS = 50_000


def raw_ns() -> int:
    """The host's clock as the run has it: at the rate of its hardware."""
    return clock_gettime_ns(CLOCK_MONOTONIC_RAW)


def spans_named(run: pig.Run, name: str) -> NDArray[np.bool_]:
    """Which spans are of the phases whose path ends in this name."""
    paths = [i for i, path in enumerate(run.paths) if path.rpartition("/")[2] == name]
    selected: NDArray[np.bool_] = np.isin(run.spans["path"], paths)
    return selected


@pytest.mark.parametrize(
    "duration_ns", [20_000, 1_000_000, 100_000_000, 700_000_000, 2_000_000_000]
)
def test_a_stream_time_is_what_kernels_read_from_the_devices_clock(
    kernels: CudaKernels, timed: Timed, duration_ns: int
) -> None:
    repetitions = 20 if duration_ns < 10_000_000 else 1
    stamps = torch.zeros(2 * repetitions, dtype=torch.int64, device="cuda")
    tick_ns = kernels.tick_ns()
    with timed() as recording:
        for i in range(repetitions):
            with kernels.held(), gpu_phase("work"):
                kernels.stamp(stamps, 2 * i)
                kernels.spin(duration_ns)
                kernels.stamp(stamps, 2 * i + 1)
            torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    truth_ns = np.diff(np.array(stamps.tolist()).reshape(-1, 2)).ravel()
    excess_ns = recording.run.span_device_ns - truth_ns
    assert (truth_ns >= duration_ns).all()
    assert (excess_ns >= -2 * tick_ns).all(), excess_ns
    assert np.median(excess_ns) <= GAPS_NS + 2 * tick_ns, excess_ns
    assert dropped_of(recording.run) == {}


def test_times_lie_where_the_host_saw_them(kernels: CudaKernels, timed: Timed) -> None:
    """The work of `inner` begins after `outer` has, and ends before the host has seen it end."""
    with timed() as recording:
        for _ in range(100):
            with gpu_phase("outer"):
                with gpu_phase("inner"):
                    kernels.spin(200_000)
                torch.cuda.synchronize()
            sleep(0.01)  # over a second: more than one comparison of the clocks
        assert recording.flush(FLUSH_S)
    run = recording.run
    inner, outer = spans_named(run, "inner"), spans_named(run, "outer")
    uncertainty_ns = analysis.of(run).clock_uncertainty_ns[inner]
    assert (run.spans["device_begin_ns"][inner] >= 0).all()
    early_ns = run.spans["host_begin_ns"][outer] - run.spans["device_begin_ns"][inner]
    late_ns = run.spans["device_end_ns"][inner] - run.spans["host_end_ns"][outer]
    assert (early_ns <= uncertainty_ns).all(), (early_ns, uncertainty_ns)
    assert (late_ns <= uncertainty_ns).all(), (late_ns, uncertainty_ns)
    assert np.median(uncertainty_ns) < 100_000


def test_queue_time_is_the_delay_that_the_host_made(kernels: CudaKernels, timed: Timed) -> None:
    bracket_ns = []
    with timed() as recording:
        for delay_s in (0.005, 0.02, 0.05, 0.1, 0.2):
            with kernels.held() as hold:
                before_ns = raw_ns()
                with gpu_phase("late"):
                    begun_ns = raw_ns()
                    kernels.spin(100_000)
                sleep(delay_s)
                least_ns = raw_ns() - begun_ns
                hold.release()
                bracket_ns.append((least_ns, raw_ns() - before_ns))
            torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    ahead_ns = run.spans["device_begin_ns"] - run.spans["host_begin_ns"]
    least_ns, most_ns = np.array(bracket_ns).T
    uncertainty_ns = analysis.of(run).clock_uncertainty_ns
    # How soon the kernel on hold sees the flag, ends, and lets the event through.
    reaction_ns = 100_000
    assert (ahead_ns >= least_ns - uncertainty_ns).all(), (ahead_ns, bracket_ns)
    assert (ahead_ns <= most_ns + uncertainty_ns + reaction_ns).all(), (ahead_ns, bracket_ns)


def test_nested_and_adjacent_phases_share_boundaries(kernels: CudaKernels, timed: Timed) -> None:
    steps, phases = 200, 4
    with timed() as recording:
        for _ in range(steps):
            with kernels.held(), gpu_step(), gpu_phase("outer"):
                for _ in range(phases):
                    with gpu_phase("inner"):
                        kernels.spin(5_000)
            torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    inner, outer = spans_named(run, "inner"), spans_named(run, "outer")
    sums_ns = run.span_device_ns[inner].reshape(steps, phases).sum(axis=1)
    # Where all boundaries are shared, the inner ones are all of the outer one, to the nanosecond.
    whole = sums_ns == run.span_device_ns[outer]
    assert (sums_ns <= run.span_device_ns[outer] + phases * kernels.tick_ns()).all()
    # The host may be interrupted between two boundaries, but not in every step.
    assert np.count_nonzero(whole) > 0.8 * steps
    assert run.device_timing is not None
    assert run.device_timing.records <= 1.2 * steps * (phases + 1)


def test_the_bottleneck_of_a_phase_that_waits_and_of_one_that_does_not(
    kernels: CudaKernels, timed: Timed
) -> None:
    """`item` waits for the device: in the phase that hides one, host and device end together."""
    value = torch.ones(1, device="cuda")
    with timed() as recording:
        for _ in range(20):
            with gpu_phase("hidden item"):
                kernels.spin(3_000_000)
                value.item()
            with gpu_phase("enqueued"):
                kernels.spin(3_000_000)
            torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    waits, enqueued = spans_named(run, "hidden item"), spans_named(run, "enqueued")
    host_ns = durations_ns_of(run.spans, "host_")
    assert (host_ns[waits] >= 3_000_000).all()
    assert np.median(host_ns[enqueued]) < 1_000_000
    assert (run.span_device_ns >= 3_000_000).all()
    found = analysis.of(run).bottlenecks()
    bottlenecks = {run.paths[path]: bottleneck.kind for path, bottleneck in found.items()}
    assert bottlenecks["hidden item"] in (Bottleneck.LAUNCH, Bottleneck.BLOCKED)
    assert bottlenecks["enqueued"] == Bottleneck.DEVICE


def test_flush_and_stop_do_not_wait_for_a_device_that_is_late(
    kernels: CudaKernels, timed: Timed
) -> None:
    with timed() as recording, kernels.held() as hold:
        with gpu_phase("slow"):
            kernels.spin(1_000)
        begin_ns = perf_counter_ns()
        assert not recording.flush(0.1)
        assert perf_counter_ns() - begin_ns < 1_000_000_000
        assert recording.snapshot().pending_device_work == {"slow": 1}
        hold.release()
        assert recording.flush(FLUSH_S)
        assert recording.snapshot().pending_device_work == {}
    assert (recording.run.span_device_ns >= 1_000).all()


def test_stop_gives_up_on_work_that_does_not_end(kernels: CudaKernels, timed: Timed) -> None:
    with kernels.held():
        with timed() as recording:
            with gpu_phase("slow"):
                kernels.spin(1_000)
            begin_ns = perf_counter_ns()
        assert perf_counter_ns() - begin_ns < 2_500_000_000
        assert recording.run.pending_device_work == {"slow": 1}
        assert recording.run.spans["flags"][0] & SpanFlag.DEVICE_UNFINISHED
        assert recording.run.complete
