# SPDX-License-Identifier: Apache-2.0
"""Which device times and metrics sinks are given, and when."""

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from tests.helpers.clock import fake_clock
from tests.helpers.device_program import Program, attached_cuda
from tests.helpers.sinks import KeepingSink

SOON_S = 0.001


def has_steps(update: pig.RunUpdate) -> bool:
    return len(update.steps) > 0


def test_a_step_comes_with_its_device_times() -> None:
    """Also where the device is late: the step waits."""
    sink = KeepingSink()
    with attached_cuda() as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            recording.add_sink(sink, interval_s=SOON_S)
            with gpu_step(), program.phase("forward"):
                program.work(50_000_000)
            recording.flush(0)
            cuda.run_dry()
            update = sink.wait_for(has_steps)
    run = recording.run

    (times,) = update.phase_times.tolist()
    assert times[-1] == run.span_device_ns[0] >= 50_000_000


def test_a_step_does_not_wait_forever() -> None:
    """Its point has no device time; the statistics have it as soon as it is known."""
    sink = KeepingSink()
    with attached_cuda() as cuda:
        program = Program(cuda)
        with program.recording() as recording:
            recording.add_sink(sink, interval_s=SOON_S)
            with gpu_step(), program.phase("forward"):
                program.work(1_000_000)
                cuda.default_stream.hang()
            update = sink.wait_for(has_steps)
            cuda.default_stream.release()
            cuda.run_dry()
    last = sink.wait_for(lambda update: update.final)

    (times,) = update.phase_times.tolist()
    assert times[-1] == -1
    assert last.totals is not None
    assert last.totals.phases["forward"].device == recording.run.phases["forward"].device
    assert recording.run.span_device_ns[0] >= 1_000_000
    assert sink.steps == [0]


def test_a_sink_that_comes_later_knows_the_names_of_metrics() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sink = KeepingSink()
    early, late = pig.MetricAccumulator(topk=1, name="early"), pig.MetricAccumulator(topk=1)
    logits, target = torch.eye(4), torch.arange(4)
    with fake_clock() as tick, pig.record() as recording:
        early.update(logits, target)
        before = len(recording.snapshot().metrics)
        recording.add_sink(sink, interval_s=SOON_S)
        late.update(logits, target)
        tick(1_000_000_000)
        early.update(logits, target)
    run = recording.run
    told = [update.metrics for update in sink.updates]

    assert before == 6  # count, loss, loss_last, accuracy@1, entropy, nonfinite
    assert sink.updates[-1].metric_names == run.metric_names
    assert [row for part in told for row in part.tolist()] == run.metrics.tolist()[before:]
