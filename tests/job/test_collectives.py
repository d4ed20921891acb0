# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a job: transfer, waiting, who asks last; and waits on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.job.analysis import of
from pyinstrument_gpu.job.findings import CollectiveUse, Pattern
from pyinstrument_gpu.job.gather import rank_data
from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.job.joined import is_symmetric
from tests.helpers.job_files import ANCHOR, rank_environment, rank_run
from tests.helpers.simulated_job import MS, WORK_NS, Slow, simulated_job

SEEDS = range(1000, 1003)


def events(rows: Sequence[Mapping[str, Any]]) -> Any:
    made = np.zeros(len(rows), COLLECTIVE_DTYPE)
    for column in ("created_ns", "started_ns", "ended_ns", "duration_ns"):
        made[column] = -1
    for each, row in zip(made, rows, strict=True):
        for column, value in row.items():
            each[column] = value
    return made


def rank(
    number: int,
    rows: Sequence[Mapping[str, Any]],
    operations: tuple[str, ...] = ("all_reduce",),
    backend: str = "nccl",
    ranks: tuple[int, ...] | None = (0, 1),
    **facts: Any,
) -> RankData:
    """A rank of two steps: the first from 1,000 to 1,030 ns with "forward" and "backward" for 10
    and 20 ns, the second the same from 2,030 ns on."""
    run = rank_run(
        number,
        {"forward": [10, 10], "backward": [20, 20]},
        environment=rank_environment(number, 2, **facts),
        collectives=Collectives(
            (ProcessGroup("0", "default_pg", ranks, backend),),
            operations,
            events(rows),
            was_read=True,
        ),
    )
    return rank_data(run)


def uses(*ranks: RankData) -> tuple[CollectiveUse, ...]:
    return of(Job(ranks, 2)).collectives


def timed(*durations_ns: int, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    return [
        {
            "created_ns": 2041 + number,
            "duration_ns": duration_ns,
            "sequence": first + number,
            "bytes": 1000,
            **columns,
        }
        for number, duration_ns in enumerate(durations_ns)
    ]


def test_transfer_and_waiting_by_durations() -> None:
    [use] = uses(rank(0, timed(100, 500, 100)), rank(1, timed(300, 100, 300)))
    assert use == CollectiveUse(
        group="default_pg",
        operation="all_reduce",
        path="backward",
        count=3,
        bytes=3000,
        transfer_ns=100,
        waiting_ns=(200 + 400 + 200) / 6,
        bytes_per_s=1000 / 100 * 1e9,
        exposed_ns=None,
        last_rank=0,
        last_share=2 / 3,
    )


def test_operations_that_not_all_ranks_have_are_not_matched() -> None:
    [use] = uses(
        rank(0, timed(100, 100, 100)),
        rank(1, [*timed(200, 200, 200, first=1), *timed(7, is_p2p=True)]),
    )
    assert use.count == 2
    assert uses(rank(0, timed(1)), rank(1, timed(1, first=5))) == ()
    assert uses(rank(0, timed(1)), rank(1, [])) == ()


def test_backends_of_one_group_are_apart() -> None:
    """As of `init_process_group("cpu:gloo,cuda:nccl")`."""
    groups = tuple(ProcessGroup("0", "default_pg", (0, 1), one) for one in ("gloo", "nccl"))
    ranks = [rank(number, [*timed(100 + number, group=1), *asked(2041, 2042)]) for number in (0, 1)]
    both = [replace(one, collectives=replace(one.collectives, groups=groups)) for one in ranks]
    by_gloo, by_nccl = sorted(uses(*both), key=lambda use: use.transfer_ns or 0)
    assert (by_gloo.count, by_gloo.transfer_ns) == (2, None)
    names = [f"default_pg (ranks 0-1, {one})" for one in ("gloo", "nccl")]
    assert [by_gloo.group, by_nccl.group] == names
    assert (by_nccl.count, by_nccl.transfer_ns, by_nccl.last_rank) == (1, 100, 0)


def test_rows_by_operation_and_phase() -> None:
    rows = [
        {"created_ns": 2035, "sequence": 0, "operation": 0, "bytes": 8, "duration_ns": 5},
        {"created_ns": 2045, "sequence": 1, "operation": 0, "bytes": 8, "duration_ns": 5},
        {"created_ns": 2046, "sequence": 2, "operation": 1, "bytes": 9, "duration_ns": 6},
        {"created_ns": 500, "sequence": 3, "operation": 1, "bytes": 8, "duration_ns": 7},
    ]
    found = uses(*(rank(number, rows, ("all_reduce", "broadcast")) for number in (0, 1)))
    assert [(use.operation, use.path, use.transfer_ns) for use in found] == [
        ("all_reduce", "forward", 5),
        ("all_reduce", "backward", 5),
        ("broadcast", "backward", None),
        ("broadcast", None, None),
    ]


def test_asymmetric_operations_tell_nothing_of_who_is_last() -> None:
    [use] = uses(*(rank(number, timed(1 + number), ("broadcast",)) for number in (0, 1)))
    assert (use.transfer_ns, use.waiting_ns, use.last_rank) == (None, None, None)
    symmetric = ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "ALLTOALL_BASE"]
    assert all(map(is_symmetric, [*symmetric, "barrier", "all_reduce_coalesced"]))
    assert not any(map(is_symmetric, ["broadcast", "reduce", "gather", "scatter", "send"]))


def test_a_rank_that_is_missing_may_have_come_last() -> None:
    for ranks in ((0, 1, 2), None):
        found = uses(rank(0, timed(1), ranks=ranks), rank(1, timed(2), ranks=ranks))
        assert [(use.transfer_ns, use.last_rank) for use in found] == [(1, None)]


def asked(*moments_ns: int) -> list[dict[str, Any]]:
    return [
        {"created_ns": moment_ns, "sequence": number, "bytes": 8}
        for number, moment_ns in enumerate(moments_ns)
    ]


def test_requests_on_one_machine() -> None:
    later = {"run_ns": 0, "monotonic_ns": 10**12 + 5, "realtime_ns": 10**18 + 5}
    first = rank(0, asked(2041, 2042), backend="gloo")
    [use] = uses(first, rank(1, asked(2041, 2042), backend="gloo", anchor=later))
    assert (use.transfer_ns, use.waiting_ns, use.bytes_per_s) == (None, 5, None)
    assert (use.last_rank, use.last_share) == (1, 1.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"host": "other"},
        {"anchor": {}},
        {"anchor": {**ANCHOR, "monotonic_ns": 10**12 + 2 * 10**9}},  # another boot
    ],
)
def test_clocks_of_different_machines_are_not_compared(facts: Mapping[str, Any]) -> None:
    first = rank(0, asked(2041), backend="gloo")
    [use] = uses(first, rank(1, asked(2041), backend="gloo", **facts))
    assert (use.count, use.waiting_ns, use.last_rank, use.last_share) == (1, None, None, None)


def test_none_of_two_that_ask_last_as_often_is_named() -> None:
    first = rank(0, asked(2041, 2045), backend="gloo")
    [use] = uses(first, rank(1, asked(2043, 2044), backend="gloo"))
    assert (use.count, use.waiting_ns, use.last_rank, use.last_share) == (2, 1.5, None, None)


def test_what_hosts_wait_for_is_exposed() -> None:
    job = simulated_job(4, 1, Slow(1, extra_ns={"data": 200 * MS}))
    [before, *_] = [use for use in of(job).collectives if use.path is None]
    [use] = [use for use in of(job).collectives if use.path == "backward"]
    assert (before.count, use.count, use.bytes) == (2, 900, 900 * 4_000_000)
    # Three of four ranks wait for 200 ms, and all for the transfer.
    assert use.exposed_ns == pytest.approx(151 * MS, rel=0.02)
    assert before.exposed_ns is None


# --- devices ---


def test_waits_on_devices_tell_who_is_late() -> None:
    slow_cases = (
        (Slow(1, extra_ns={"data": 200 * MS}), "data"),
        (Slow(1, {"data": 3.0}), "data"),
        (Slow(1, dict.fromkeys(WORK_NS, 1.3)), None),
    )
    for ranks in (2, 4):
        for seed in SEEDS:
            for slow, path in slow_cases:
                job = simulated_job(ranks, seed, slow, has_durations=True)
                found = of(job).stragglers
                assert found.straggler is not None and found.is_by_arrivals
                assert (found.straggler.rank, found.pattern) == (1, Pattern.ALWAYS)
                assert found.straggler.path == path
            job = simulated_job(ranks, seed, has_durations=True)
            assert of(job).stragglers.pattern == Pattern.BALANCED


def test_a_sleep_in_some_steps_with_devices() -> None:
    for seed in SEEDS:
        slow = Slow(1, extra_ns={"data": 200 * MS}, every=10)
        found = of(simulated_job(2, seed, slow, has_durations=True)).stragglers
        assert found.straggler is not None
        assert (found.straggler.rank, found.straggler.path) == (1, "data")
        assert found.pattern == Pattern.SOME_STEPS


def test_phases_of_programs_on_devices_are_not_judged_by_the_time_of_hosts() -> None:
    job = simulated_job(2, 1, Slow(1, {"data": 3.0}), has_durations=True)
    assert all(row.pattern == Pattern.UNKNOWN for row in of(job).phases)
    assert all((row.imbalance_ns, row.waiting_ns) == (None, None) for row in of(job).phases)


def with_streams(job: Job, has_waits: bool) -> Job:
    """The job without records of collectives, but with device times: as long as on the host, or
    without what the devices waited."""
    ranks = []
    for each in job.ranks:
        device_ns = each.self_ns if has_waits else np.broadcast_to(5 * MS, each.self_ns.shape)
        ranks.append(replace(each, device_ns=device_ns, collectives=Collectives()))
    return Job(tuple(ranks), job.world_size)


def test_devices_without_durations() -> None:
    job = simulated_job(2, 1, Slow(1, extra_ns={"data": 200 * MS}))
    found = of(with_streams(job, has_waits=True)).stragglers
    assert found.straggler is not None and found.straggler.path == "data"
    assert not found.is_by_arrivals
    # The host of rank 1 has more to do, but no device waits for it.
    found = of(with_streams(job, has_waits=False)).stragglers
    assert found.pattern == Pattern.UNKNOWN
    assert found.reason is not None and "TORCH_NCCL_ENABLE_TIMING=1" in found.reason
    found = of(with_streams(simulated_job(2, 1), has_waits=True)).stragglers
    assert found.pattern == Pattern.UNKNOWN


def test_stream_times_say_in_which_phase_a_device_is_slow() -> None:
    job = simulated_job(4, 1, Slow(1, {"forward": 1.5}), has_durations=True)
    ranks = []
    for each in job.ranks:
        every = np.where(np.arange(300) % 7 == each.rank, each.self_ns, -1)
        host_ns = np.broadcast_to(np.int64(5 * MS), each.self_ns.shape)
        ranks.append(replace(each, device_ns=every, self_ns=host_ns))
    found = of(Job(tuple(ranks), 4)).stragglers
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.path) == (1, "forward")
