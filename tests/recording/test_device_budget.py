# SPDX-License-Identifier: Apache-2.0
"""What device times cost on the simulated driver: which steps are timed, and what a boundary asks
of the driver."""

import math
import threading

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording import device_timing
from tests.helpers.device_program import (
    RECORD_NS,
    Program,
    assert_exact,
)
from tests.helpers.simulated_cuda import (
    Result,
)
from tests.helpers.spans import dropped_of
from tests.helpers.threads import on_thread


@pytest.mark.parametrize("minutes", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_distances_as_coarse_as_documented(program: Program, minutes: int) -> None:
    """The documentation promises about half a microsecond."""
    program.cuda.devices[0].set_elapsed_resolution(500)
    with program.recording(share_boundaries_ns=1_000) as recording:
        with program.phase("epoch"):
            for i in range(minutes * 60 * 8):
                with gpu_step(), program.phase("forward"):
                    program.work(device_ns=1_000_003 * (i % 7 + 1))
                program.cuda.advance(125_000_000)
                recording.flush(0)
            program.cuda.run_dry()
        program.cuda.run_dry()
    run = recording.run
    for i, (begin, end) in enumerate(program.expected):
        first, last = program.cuda.record(begin), program.cuda.record(end)
        truth_ns = (last.stamp_ns or 0) - (first.stamp_ns or 0)
        assert abs(int(run.span_device_ns[i]) - truth_ns) <= 750 + 1e-7 * truth_ns


def test_adjacent_and_nested_phases_share_their_boundaries(program: Program) -> None:
    # The harvester's records move the one clock too.
    program.cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0) as recording:
        with program.phase("outer"), program.phase("inner"):
            program.work(1_000_000)
        for _ in range(5):
            with program.phase("adjacent"):
                program.work(1_000_000)
        program.cuda.run_dry()
    assert program.marks() == 6 + 1  # six stretches of work, and what lies around them
    assert_exact(recording.run, program)


def test_nothing_is_shared_across_a_longer_gap(program: Program) -> None:
    with program.recording(reading_ns=0):
        for _ in range(3):
            with program.phase("adjacent"):
                program.work(1_000_000)
            program.cuda.advance(device_timing.SHARE_BOUNDARIES_NS + 1)
        program.cuda.run_dry()
    assert program.marks() == 6


def test_a_wait_that_is_enqueued_quickly_counts_where_it_was_enqueued(program: Program) -> None:
    """The cheapest enqueue that was measured on a GPU takes 398 ns."""
    cuda = program.cuda
    cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0) as recording:
        with program.phase("before"):
            program.work(1_000)
        with program.phase("wait"):
            cuda.advance(398)
            cuda.default_stream.launch(3_000_000)
        with program.phase("after"):
            program.work(5_000)
        cuda.run_dry()
    assert recording.run.phases["wait"].device is not None
    assert recording.run.phases["wait"].device.total_ns >= 3_000_000
    assert_exact(recording.run, program)


def test_a_stream_that_two_threads_use_in_the_step_shares_nothing(program: Program) -> None:
    def other_thread() -> None:
        program.cuda.make_current(context)
        with gpu_phase("theirs"):
            pass

    context = program.cuda.current_context
    program.cuda.set_cost("cuEventRecord", 0)
    with program.recording(reading_ns=0):
        with gpu_step():
            on_thread(other_thread)
            before = program.marks()
            for _ in range(3):
                with gpu_phase("mine"):
                    pass
            assert program.marks() == before + 6
        with gpu_step():  # the next step is another matter
            before = program.marks()
            for _ in range(3):
                with gpu_phase("mine"):
                    pass
            assert program.marks() <= before + 1


def test_of_short_steps_one_of_every_k_is_timed_by_chance(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        for _ in range(1000):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(300_000)
        program.cuda.run_dry()
    run = recording.run
    assert run.device_timing is not None
    # A timed step takes 303 us, of which a thousandth pays for a tenth of its two records.
    assert run.device_timing.every == math.ceil(2 * RECORD_NS / 0.001 / 300_000)
    steps = run.spans["step"][run.span_device_ns >= 0]
    every = run.device_timing.every
    later = steps[steps >= 100].astype(int)
    assert np.diff(later).max() < 2 * every  # one of each block of so many
    assert (later[2:] - later[:-2]).min() > every
    # It keeps step with nothing that a program does every so many steps.
    assert len(set((later % every).tolist())) > every // 2
    assert len(run.spans) == 1000


def test_a_short_first_step_does_not_decide_for_the_next(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        with gpu_step(), program.phase("forward"):
            program.cuda.advance(2_000)
        for _ in range(50):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(50_000_000)
        program.cuda.run_dry()
    assert np.count_nonzero(recording.run.span_device_ns >= 0) >= 50


def test_the_end_of_an_epoch_takes_no_steps_turn(program: Program) -> None:
    """Every tenth step is timed, and every tenth that begins is the one that finds no batch."""
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        with gpu_step(), gpu_phase("forward"):
            program.cuda.advance(300_000)
        for _ in range(20):
            for _ in pig.gpu_steps(range(9)):
                with gpu_phase("forward"):
                    program.cuda.advance(300_000)
        program.cuda.run_dry()
    run = recording.run
    assert run.device_timing is not None
    assert run.device_timing.every == 10
    assert len(np.unique(run.spans["step"][run.span_device_ns >= 0])) >= 181 // 10


@pytest.mark.parametrize(("budget", "step_ns"), [(0.001, 50_000_000), (math.inf, 1_000)])
def test_long_steps_and_no_budget_are_timed_all(
    program: Program, budget: float, step_ns: int
) -> None:
    with program.recording(reading_ns=0, device_timing_budget=budget) as recording:
        for _ in range(20):
            with gpu_step(), program.phase("forward"):
                program.cuda.advance(step_ns)
        program.cuda.run_dry()
    assert np.count_nonzero(recording.run.span_device_ns >= 0) == 20


def test_outside_steps_the_budget_is_one_of_time(program: Program) -> None:
    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        for _ in range(3_000):
            with gpu_phase("hot"):
                program.cuda.advance(2_000)
        program.cuda.run_dry()
    dropped = dropped_of(recording.run)
    assert dropped["device_budget"] == 3_000 - np.count_nonzero(recording.run.span_device_ns >= 0)
    assert 900 <= dropped["device_budget"] < 1_000  # some were saved up


def test_a_thread_that_is_not_timed_uses_up_no_budget(program: Program) -> None:
    context = program.cuda.devices[0].create_context()

    def load() -> None:
        program.cuda.make_current(context)
        for _ in range(5_000):
            with gpu_phase("load"):
                pass

    with program.recording(reading_ns=0, device_timing_budget=0.001) as recording:
        on_thread(load)
        with gpu_phase("train"):
            program.work(1_000)
        program.cuda.run_dry()
    assert dropped_of(recording.run) == {"device_no_context": 5_000}
    assert recording.run.phases["train"].device is not None


def test_at_most_one_answer_not_ready_per_stream_and_harvest(program: Program) -> None:
    cuda = program.cuda
    streams = [cuda.devices[0].create_stream() for _ in range(5)]
    stream_of_event: dict[int, int] = {}
    with program.recording() as recording:
        for i in range(60):
            stream = streams[i % 5]
            with gpu_step(), stream.as_current(), gpu_phase("work"):
                cuda.advance(3_000)
                stream.launch(7_000_000)
            first = cuda.end_of_calls
            recording.flush(0)
            for record in cuda.records():
                stream_of_event[record.event] = record.stream
            here = threading.get_native_id()
            not_ready = [
                stream_of_event[call.arguments[0]]
                for call in cuda.calls("cuEventQuery", since=first)
                if call.result == Result.NOT_READY and call.thread == here
            ]
            assert len(not_ready) == len(set(not_ready))
        cuda.run_dry()
    assert cuda.count("cuEventQuery", Result.NOT_READY) > 30
    assert np.count_nonzero(recording.run.span_device_ns >= 0) == 60


@pytest.mark.parametrize("knows", [True, False])
def test_distances_are_asked_for_at_little_cost(program: Program, knows: bool) -> None:
    """By the call that does not look at the events' state, unless it does not know them yet."""
    cuda = program.cuda
    cuda.set_elapsed_polls(knows)
    with program.recording() as recording:
        for _ in range(20):
            with gpu_step(), program.phase("work"):
                program.work(3_000_000)
            recording.flush(0)
        cuda.run_dry()
    assert_exact(recording.run, program)
    assert cuda.count("cuEventElapsedTime_v2") >= 40
    assert cuda.count("cuEventElapsedTime") == (
        0 if knows else cuda.count("cuEventElapsedTime_v2", Result.NOT_READY)
    )


def test_a_wait_for_room_in_a_full_queue_is_no_cost(program: Program) -> None:
    """The host, which is far ahead, would have waited as long in its next launch."""
    cuda = program.cuda
    cuda.devices[0].set_queue_depth(64)

    def make_room() -> None:
        cuda.wait_until_blocked(or_more=True)
        cuda.advance(2_000_000_000)

    with program.settled(device_timing_budget=1e-3, share_boundaries_ns=0) as recording:
        for _ in range(8):
            with gpu_step():
                with gpu_phase("has room"):
                    pass
                cuda.run_dry()
                for _ in range(64):
                    cuda.default_stream.launch(1_000_000_000)
                room = threading.Thread(target=make_room)
                room.start()
                with gpu_phase("waits for room"):
                    pass
                room.join()
            cuda.run_dry()
    run = recording.run
    assert cuda.blocking_calls == 0
    assert (run.span_device_ns >= 0).all()
    assert run.device_timing is not None
    assert run.device_timing.every == 1
    assert run.device_timing.record_ns < 32 * 4 * 2 * RECORD_NS  # each record at most as four


def test_what_a_boundary_asks_of_the_driver(program: Program) -> None:
    """On the thread of the program; that the context is still there is seen once a step."""
    cuda = program.cuda
    boundary = ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord"]
    with program.recording(share_boundaries_ns=0):
        with gpu_phase("finds its stream"):
            pass
        here = threading.get_native_id()
        for _ in range(2):
            first = cuda.end_of_calls
            with gpu_step():
                for _ in range(5):
                    with gpu_phase("work"):
                        cuda.advance(5_000)
            calls = [call.function for call in cuda.calls(since=first) if call.thread == here]
            assert calls == ["cuCtxGetCurrent", "cuCtxGetId", *boundary[1:], *9 * boundary]
