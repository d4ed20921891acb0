# SPDX-License-Identifier: Apache-2.0
"""The simulator of training programs, against answers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.edits import edits
from tests.helpers.simulator.families import drawn
from tests.helpers.simulator.loader import Loader, LoaderOptions
from tests.helpers.simulator.operations import (
    AwaitReduced,
    AwaitStaged,
    Copy,
    Launches,
    NextBatch,
    Operation,
    Periodic,
    Phase,
    Read,
    Reduce,
    StageBatch,
    Work,
)
from tests.helpers.simulator.program import Program, RecorderOptions
from tests.helpers.simulator.simulation import simulated
from tests.helpers.simulator.stream import Kernels, Stream

# Clocks that agree, events that cost nothing, and no latencies, so that sums are simple.
EXACT = RecorderOptions(
    record_ns=0, event_ns=0, phase_ns=0, resolution_ns=1, uncertainty_ns=0, drift=0
)


def program(*step: Operation, steps: int = 1, **options: object) -> Program:
    made = Program(seed=1, steps=steps, step=step, latency_ns=0, wake_ns=0, recorder=EXACT)
    return replace(made, **options)  # type: ignore[arg-type]


def work(place: int, host_ns: int) -> Work:
    return Work(place, Duration(host_ns))


def launches(place: int, host_ns: int, *kernels_ns: int) -> Launches:
    return Launches(place, Duration(host_ns), kernels_ns, Duration(1))


def read(place: int, site: int = 0, call_ns: int = 10, copy_ns: int = 5) -> Read:
    return Read(place, site, SyncKind.ITEM, Duration(call_ns), copy_ns)


# --- streams ---


def test_a_stream_works_in_order_and_begins_after_the_latency() -> None:
    stream = Stream(depth=1024, latency_ns=4)

    assert stream.put(10, 100) == 114
    assert stream.put(20, 100) == 214
    assert stream.put(300, 100) == 404


def test_the_host_waits_for_room_in_a_full_queue() -> None:
    stream = Stream(depth=2, latency_ns=0)
    kernels = Kernels(np.array([[1, 1, 1]]), np.array([[100, 100, 100]]))

    # Launched at 1, 2 and 3, done at 101, 201 and 301; the third has to wait for the first.
    assert stream.launch(0, kernels, 0) == 101
    assert stream.free_ns == 301
    assert stream.room_ns(102) == 201


@pytest.mark.parametrize("depth", [1, 7, 30, 10_000])
def test_launching_together_is_the_same_as_one_by_one(depth: int) -> None:
    rng = np.random.default_rng(3)
    together, single = Stream(depth, 3), Stream(depth, 3)
    now_ns = single_ns = 5
    for _ in range(300):
        hosts_ns, devices_ns = rng.integers(0, 20, (2, 1, rng.integers(1, 12)))
        now_ns = together.launch(now_ns, Kernels(hosts_ns, devices_ns), 0)
        for host_ns, device_ns in zip(hosts_ns[0].tolist(), devices_ns[0].tolist(), strict=True):
            single_ns = single.room_ns(single_ns + host_ns)
            single.put(single_ns, device_ns)
        assert (now_ns, together.free_ns) == (single_ns, single.free_ns)
        wait_ns, device_ns = rng.integers(0, 60, 2).tolist()
        now_ns = together.room_ns(now_ns + wait_ns)
        single_ns = single.room_ns(single_ns + wait_ns)
        assert together.put(now_ns, device_ns) == single.put(single_ns, device_ns)
        if rng.random() < 0.1:
            now_ns = single_ns = together.free_ns


# --- loaders ---


def test_a_loader_in_the_process_makes_each_batch_when_asked() -> None:
    loader = Loader(LoaderOptions(Duration(0)), [100, 200], [7, 7])

    assert loader.next_ns(1000) == 1100
    assert loader.next_ns(1100) == 1300


def test_workers_make_batches_in_turn_and_hand_them_over_in_order() -> None:
    options = LoaderOptions(Duration(0), workers=2, prefetch_factor=1)
    # Worker 0 makes batches 0 and 2, worker 1 batch 1 and 3.
    loader = Loader(options, [500, 100, 100, 100], [0, 0, 0, 7])

    assert loader.next_ns(0) == 500
    # Made at 100, taken when asked for; batch 2 was asked for at 500.
    assert loader.next_ns(510) == 510
    assert loader.next_ns(520) == 600
    # Asked for when batch 1 was taken; to take it takes 7.
    assert loader.next_ns(605) == 617


def test_workers_that_are_enough_start_once_and_hand_over_each_batch() -> None:
    options = LoaderOptions(
        Duration(0), workers=2, prefetch_factor=1, fork_ns=50, startup_ns=1000, epoch=2
    )
    loader = Loader(options, [500, 500, 500], [7, 7, 7], is_fast=True)

    assert loader.next_ns(0) == 50 + 1000 + 7
    assert loader.next_ns(2000) == 2007
    # The next epoch has the same workers.
    assert loader.next_ns(3000) == 3007
    in_process = LoaderOptions(Duration(0), pause_every=2, pause_ns=900)
    assert Loader(in_process, [500], [7], is_fast=True).next_ns(0) == 7
    paused = Loader(in_process, [500, 500], [7, 7])
    assert [paused.next_ns(0), paused.next_ns(500)] == [500, 1900]


def test_what_is_asked_for_is_bounded_by_workers_times_prefetch_factor() -> None:
    options = LoaderOptions(Duration(0), workers=1, prefetch_factor=2)
    loader = Loader(options, [10] * 5, [0] * 5)
    assert loader.next_ns(0) == 10

    # Batches 1 and 2 are there since 20 and 30; 3 and 4 are asked for as they are taken.
    assert loader.next_ns(1000) == 1000
    assert loader.next_ns(1000) == 1000
    assert loader.next_ns(1000) == 1010
    assert loader.next_ns(1010) == 1020


def test_each_epoch_begins_with_new_workers() -> None:
    options = LoaderOptions(Duration(0), workers=1, prefetch_factor=2, startup_ns=100, epoch=2)
    loader = Loader(options, [10] * 3, [0] * 3)

    assert loader.next_ns(0) == 110
    assert loader.next_ns(1000) == 1000
    assert loader.next_ns(1000) == 1110


def test_an_epoch_that_was_begun_has_its_batches_made_before_they_are_asked_for() -> None:
    options = LoaderOptions(Duration(0), workers=1, startup_ns=100, fork_ns=30, epoch=1)
    loader = Loader(options, [10] * 2, [0] * 2)

    assert loader.begin_epoch(0) == 30
    assert loader.next_ns(50) == 140
    assert loader.begin_epoch(1000) == 1030
    assert loader.next_ns(5000) == 5000


# --- programs ---


def test_what_a_read_waits_for() -> None:
    step = Phase("forward", (launches(1, 2_000, 9_000, 9_000), read(2, call_ns=1_000, copy_ns=500)))
    before = simulated(program(step))

    # Launched at 2 and 4 us, done at 11 and 20; the copy takes 0.5, the call half of 1 before it
    # and half of 1 behind.
    assert before.elapsed_ns == 21_000
    [event] = before.run.syncs.events
    assert (event["duration_ns"], event["site"], event["step"]) == (17_000, 0, 0)
    [span] = before.run.spans
    assert span["host_end_ns"] - span["host_begin_ns"] == span["blocked_ns"] + 4_000 == 21_000
    # From the first event, on an idle device, to the second, which is recorded behind the read.
    assert before.run.span_device_ns.tolist() == [21_000]
    # Without it, the device is done at 20 us.
    assert before.saved_ns(Edit("sync", site=0)) == (1_000,)


def test_a_wait_that_moves_is_not_saved() -> None:
    step = (launches(1, 10, 100), read(2, site=0), read(3, site=1))
    before = simulated(program(*step))

    # 10 + 100 + 5 + half a call, then a call and a copy of 5.
    assert before.elapsed_ns == 120 + 15
    assert before.saved_ns(Edit("sync", site=0)) == (15,)
    assert before.saved_ns(Edit("sync", site=1)) == (15,)
    assert before.saved_ns(Edit("all syncs")) == (25,)


def test_launches_at_once_leave_the_host_its_other_work() -> None:
    before = simulated(program(Phase("forward", (work(1, 50), launches(2, 10, 3, 3)))))

    assert before.elapsed_ns == 50 + 20 + 3
    assert before.saved_ns(Edit("launches", path="forward")) == (17,)
    assert before.saved_ns(Edit("launches", path="backward")) == (0,)


def test_a_pageable_copy_waits_and_a_pinned_one_does_not() -> None:
    copy = Copy(1, 0, SyncKind.H2D_PAGEABLE, Duration(10), 1000, 5, 10)
    before = simulated(program(launches(2, 10, 500), copy, work(3, 1000)))

    # Launched at 10, done at 510; the copy takes 200, and the rest of the call 5.
    assert before.elapsed_ns == 10 + 500 + 200 + 5 + 1000
    # Without: the launch, the call and the work.
    assert before.saved_ns(Edit("copies")) == (1715 - 1020,)


@pytest.mark.parametrize(
    ("size", "waited_ns"),
    [
        # The call, and 8 bytes a nanosecond into the command.
        (8_000, 10 + 1_000),
        # The kernel, and 4 bytes a nanosecond.
        (80_000, 30_000 + 20_000),
    ],
)
def test_a_non_blocking_copy_from_pageable_memory_waits_only_if_it_is_large(
    size: int, waited_ns: int
) -> None:
    copy = Copy(1, 0, SyncKind.H2D_PAGEABLE, Duration(10), size, 4, 10, non_blocking=True)
    before = simulated(program(launches(2, 0, 30_000), copy))

    assert before.run.syncs.events["duration_ns"].tolist() == [waited_ns]


def test_batches_that_are_there_at_once() -> None:
    data = Phase("data", (NextBatch(),))
    made = program(data, work(1, 100), steps=2, loader=LoaderOptions(Duration(1000)))
    before = simulated(made)

    assert before.elapsed_ns == 2200
    assert before.saved_ns(Edit("data")) == (1000,)


def test_the_compute_stream_waits_for_the_copy_of_the_batch() -> None:
    stage = StageBatch(1, Duration(10), Duration(500))
    step = (stage, launches(2, 10, 100), AwaitStaged(), launches(3, 10, 100), read(4))
    before = simulated(program(*step, has_device=True))

    # The copy is under way from 10 to 510, the kernels from 20 and from 510, the read is done at
    # 615 and half a call.
    assert before.elapsed_ns == 620
    assert before.saved_ns(Edit("sync", site=0)) == (10,)


@pytest.mark.parametrize("is_overlapped", [True, False])
def test_a_collective_ends_when_the_last_rank_has_arrived(is_overlapped: bool) -> None:
    reduce = Reduce(3, Duration(0), Duration(50), is_overlapped)
    step = (work(1, 100), launches(2, 0, 10), reduce, AwaitReduced(), launches(4, 0, 10))
    made = program(*step, ranks=3)
    assert simulated(made).elapsed_ns == 100 + 10 + 50 + 10

    slow = replace(made, step=(Work(1, Duration(100, spread=1)), *step[1:]))
    ranks = simulated(slow).ranks
    hosts_ns = [rank.now_ns for rank in ranks]
    assert len(set(hosts_ns)) == 3
    assert {rank.done_ns for rank in ranks} == {max(hosts_ns) + 10 + 50 + 10}


def test_a_change_on_one_rank_alone_leaves_it_waiting_for_the_others() -> None:
    reduce = Reduce(3, Duration(0), Duration(50), is_overlapped=True)
    step = (Phase("data", (NextBatch(),)), launches(2, 0, 10), reduce, AwaitReduced())
    made = program(*step, ranks=2, loader=LoaderOptions(Duration(1000)))

    assert simulated(made).saved_ns(Edit("data")) == (1000, 0)


def test_what_is_done_between_steps_counts_as_elapsed_and_not_as_step() -> None:
    evaluation = Periodic("eval", 2, 3, (launches(2, 10, 1),))
    before = simulated(program(work(1, 100), steps=4, periodic=(evaluation,)))

    assert before.elapsed_ns == 4 * 100 + 2 * 3 * 10 + 1
    steps = before.run.steps.array
    assert durations_ns_of(steps).tolist() == [100] * 4
    assert before.run.spans["step"].tolist() == [-1] * 6
    inside = Edit("launches", path="eval")
    assert before.saved_ns(inside) == (0,)
    assert before.saved_ns(replace(inside, is_inside=False)) == ((60 + 1 - 3) / 4,)


def test_a_phase_of_every_third_turn() -> None:
    step = (Phase("forward", (work(1, 100),)), Phase("optimizer", (work(2, 1),), every=3))
    before = simulated(program(*step, steps=7))

    assert before.elapsed_ns == 7 * 100 + 2
    steps = before.run.spans["step"][before.run.spans["depth"] == 0]
    assert steps.tolist() == [0, 1, 2, 2, 3, 4, 5, 5, 6]


def test_without_a_device_launching_is_computing() -> None:
    before = simulated(program(launches(1, 10, 100, 100), read(2), has_device=False))

    assert before.elapsed_ns == 220 + 10
    assert not len(before.run.syncs.events)


def test_device_times_are_as_good_as_the_clocks() -> None:
    made = program(Phase("forward", (launches(1, 2_000, 1_000_000),)), steps=50)
    coarse = replace(
        EXACT, resolution_ns=500, uncertainty_ns=3_000, drift=1e-4, compared_every_ns=10**7
    )
    exact, run = simulated(made).run, simulated(replace(made, recorder=coarse)).run

    off_ns = run.spans["device_begin_ns"] - exact.spans["device_begin_ns"]
    assert 500 < np.abs(off_ns).max() <= run.device_clocks[0].uncertainty_ns
    assert np.abs(run.span_device_ns - 1.0001 * exact.span_device_ns).max() <= 500


def test_every_third_step_is_timed() -> None:
    made = program(Phase("forward", (launches(1, 2_000, 10),)), steps=7)
    run = simulated(replace(made, recorder=replace(EXACT, every=3))).run

    assert np.flatnonzero(run.span_device_ns >= 0).tolist() == [2, 5]


def test_the_default_budget_times_so_few_steps_that_events_cost_a_thousandth() -> None:
    made = program(Phase("forward", (work(1, 100_000),)), steps=200)
    run = simulated(replace(made, recorder=replace(EXACT, every=None, record_ns=1_000))).run

    # Two events of 1 us in a step of 0.1 ms, so every 20th.
    assert run.device_timing is not None
    assert run.device_timing.every == 20
    assert np.count_nonzero(run.span_device_ns >= 0) == 200 // 20


@pytest.mark.parametrize(
    "family",
    [
        *("syncs", "validation"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("copy stream", "ranks")),
    ],
)
def test_a_change_leaves_all_other_times_as_they_were(family: str) -> None:
    made = drawn(family, 7)
    again, before = simulated(made), simulated(made)

    assert again.elapsed_ns == before.elapsed_ns
    assert again.saved_ns(Edit("sync", site=99))[0] == 0
    for edit in edits(made):
        assert max(before.saved_ns(edit)) <= before.elapsed_ns / made.steps
