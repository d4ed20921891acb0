# SPDX-License-Identifier: Apache-2.0
"""Waits for batches with other workers, beside a simulation that goes from event to event."""

import heapq
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.analysis.loader_replay import LoaderModel, Processors, replayed_wait_ns

MS = 1_000_000
times = st.lists(st.integers(0, 50), min_size=1, max_size=12)


def simulated_waits(
    making: list[int],
    using: list[int],
    handing: list[int],
    workers: int,
    prefetch: int,
    batches: int,
) -> list[int]:
    """What torch's DataLoader does, with queues: each wait."""
    queues: list[deque[int]] = [deque() for _ in range(workers)]
    is_busy = [False] * workers
    events: list[tuple[int, int, int]] = []  # when, the worker, the batch that it has made
    made: set[int] = set()
    sent = 0

    def begin(worker: int, now: int) -> None:
        if queues[worker] and not is_busy[worker]:
            is_busy[worker] = True
            batch = queues[worker].popleft()
            heapq.heappush(events, (now + making[batch % len(making)], worker, batch))

    def send(now: int) -> None:
        nonlocal sent
        queues[sent % workers].append(sent)
        begin(sent % workers, now)
        sent += 1

    def until(batch: int) -> int:
        now = 0
        while batch not in made:
            now, worker, done = heapq.heappop(events)
            made.add(done)
            is_busy[worker] = False
            begin(worker, now)
        return now

    now = 0
    for _ in range(workers * prefetch):
        send(now)
    waits = []
    for batch in range(batches):
        asked = now
        while events and events[0][0] <= now:  # what the workers did meanwhile
            done_at, worker, done = heapq.heappop(events)
            made.add(done)
            is_busy[worker] = False
            begin(worker, done_at)
        now = max(now, until(batch)) + handing[batch % len(handing)]
        waits.append(now - asked)
        while events and events[0][0] <= now:
            done_at, worker, done = heapq.heappop(events)
            made.add(done)
            is_busy[worker] = False
            begin(worker, done_at)
        send(now)
        now += using[batch % len(using)]
    return waits


@given(times, times, times, st.integers(1, 5), st.integers(1, 4))
def test_the_replay_waits_as_a_simulation_does(
    making: list[int], using: list[int], handing: list[int], workers: int, prefetch: int
) -> None:
    count = min(len(making), len(using), len(handing))
    making, using, handing = making[:count], using[:count], handing[:count]
    rounds = max(2, -(-3 * workers * prefetch // count))
    waits = simulated_waits(making, using, handing, workers, prefetch, rounds * count)

    found = replayed_wait_ns(making, using, handing, workers, prefetch)

    assert found == sum(waits[-count:]) / count


def test_a_queue_of_any_length_takes_no_time() -> None:
    assert replayed_wait_ns([20], [10], [0], 1, 2**31) == 10


@given(times, times)
def test_without_workers_the_loop_waits_for_as_long_as_batches_take(
    making: list[int], using: list[int]
) -> None:
    count = min(len(making), len(using))
    assert replayed_wait_ns(making, using, [7] * count, 0, 2) == sum(making[:count]) / count


def model(
    making_ns: int,
    using_ns: int,
    workers: int,
    wait_ns: float,
    processors: Processors,
    handing_ns: int = 0,
) -> LoaderModel:
    making, using, handing = (np.full(64, time_ns) for time_ns in (making_ns, using_ns, handing_ns))
    return LoaderModel(making, using, handing, workers, 2, processors, wait_ns)


def test_workers_that_sleep_need_no_processors() -> None:
    asleep = Processors(cores=2, cpu_share=0.0)
    found = model(40 * MS, 5 * MS, 2, 15 * MS, asleep).predictions()
    assert [(one.change, one.wait_ns, one.least_ns, one.most_ns) for one in found] == [
        ("1 worker", 35 * MS, 35 * MS, 35 * MS),
        ("4 workers", 5 * MS, 5 * MS, 5 * MS),
        ("8 workers", 0, 0, 0),
        ("prefetch_factor=4", 15 * MS, 15 * MS, 15 * MS),
    ]


def test_more_batches_ahead_even_out_long_ones() -> None:
    making_ns = np.full(64, 10 * MS)
    making_ns[::16] = 50 * MS
    asleep = Processors(cores=2, cpu_share=0.0)
    run = LoaderModel(making_ns, np.full(64, 15 * MS), np.zeros(64, int), 1, 2, asleep, 0.0)
    run = replace(run, wait_ns=run.wait_with(1))
    *_, deeper = run.predictions()
    assert deeper.change == "prefetch_factor=4"
    assert deeper.wait_ns < run.wait_ns


def test_a_stage_that_is_twice_as_fast_takes_half_its_share() -> None:
    # Without a half of 60 % of them, batches take 28 ms of two workers, and the loop uses 5 ms.
    asleep = Processors(cores=2, cpu_share=0.0)
    faster = model(40 * MS, 5 * MS, 2, 15 * MS, asleep).with_faster("decode", (0.6, 0.8, 0.4))
    assert (faster.change, faster.workers) == ("decode twice as fast", 2)
    assert [faster.wait_ns, faster.least_ns, faster.most_ns] == [9 * MS, 7 * MS, 11 * MS]
    # Nobody waits for a processor where a worker does not: 24 ms * 3/4 are 18 ms of two workers.
    queued = Processors(cores=8, cpu_share=0.5, queued_share=0.25)
    freed = model(40 * MS, 5 * MS, 2, 15 * MS, queued).with_faster("decode", (0.6, 0.8, 0.4))
    assert (freed.wait_ns, freed.least_ns) == (9 * MS, 4 * MS)
    # A loop that makes its batches itself waits for all of it.
    alone = model(40 * MS, 5 * MS, 0, 40 * MS, asleep).with_faster("decode", (0.6, 0.8, 0.4))
    assert (alone.wait_ns, alone.least_ns, alone.most_ns) == (28 * MS, 24 * MS, 32 * MS)


def test_workers_that_compute_share_the_processors() -> None:
    # Two workers on two processors beside the loop: three want two, so each computes for 2/3.
    busy = Processors(cores=2, cpu_share=2 / 3, queued_share=1 / 3)
    *_, most, _ = model(30 * MS, 5 * MS, 2, 10 * MS, busy).predictions()
    assert most.workers == 8
    # Nine want two of them, so that a worker makes its batch of 20 ms in 90, and eight give one in
    # 11.25. At most that is waited for, as the loop takes at least the 5 ms that it took.
    assert most.most_ns == pytest.approx(6.25 * MS)
    # But the loop has to share, too, and then takes up to 22.5 ms, so that it waits for none.
    assert (most.wait_ns, most.least_ns) == (0, 0)


def test_a_loop_that_waited_for_a_processor_takes_less_without_these_workers() -> None:
    # Of its 12 ms it waited 4 for a processor, as two workers had both: one worker leaves it one.
    busy = Processors(cores=2, cpu_share=1.0, loop_queued_ns=4 * MS)
    one = model(20 * MS, 12 * MS, 2, 0, busy).predicted(1)
    assert one.most_ns == 12 * MS
    # A processor does up to half as much again while the other one rests.
    assert one.least_ns == pytest.approx(20 / 1.5 * MS - 8 * MS, abs=1)


def test_a_processor_does_less_while_the_others_work() -> None:
    alone = Processors(cores=4, cpu_share=1.0)
    two = model(40 * MS, 5 * MS, 1, 35 * MS, alone).predicted(2)
    assert two.least_ns == 15 * MS
    assert two.most_ns == 25 * MS
    assert two.wait_ns == pytest.approx((40 * (1 + 0.5 / 3) / 2 - 5) * MS)


def test_what_handing_over_takes_may_be_less_with_other_workers() -> None:
    # It was 9 ms while the worker made its next batch. Two wait for the loop.
    asleep = Processors(cores=2, cpu_share=0.0)
    run = model(20 * MS, 15 * MS, 1, 9 * MS, asleep, handing_ns=9 * MS)
    assert run.explains_run
    one, two = run.predicted(1), run.predicted(2)
    assert (one.least_ns, one.wait_ns, one.most_ns) == (9 * MS, 9 * MS, 9 * MS)
    assert (two.least_ns, two.wait_ns, two.most_ns) == (300_000, 9 * MS, 9 * MS)


def test_where_the_replay_does_not_explain_the_run_nothing_is_said() -> None:
    found = model(40 * MS, 5 * MS, 2, 25 * MS, Processors(cores=4))
    assert not found.explains_run
    assert not [*found.predictions()]


def test_a_few_batches_tell_nothing() -> None:
    times_ns = np.full(31, MS)
    few = LoaderModel(times_ns, times_ns, times_ns, 1, 2, Processors(4), float(MS))
    assert not few.explains_run
