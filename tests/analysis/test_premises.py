# SPDX-License-Identifier: Apache-2.0
"""What savings, advice and bottlenecks say where one of their premises fails, on simulated programs
of which it is known what a change saves."""

import math
from dataclasses import replace

import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding, in_order, subject
from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.compare import Verdict, compare
from pyinstrument_gpu.analysis.savings import Change, Limit, ReplayedSaving
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.report.savings import savings_parts
from pyinstrument_gpu.report.verdict import verdict
from tests.helpers.calibration import judged
from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.loader import LoaderOptions
from tests.helpers.simulator.operations import (
    AwaitStaged,
    Copy,
    Flush,
    Launches,
    NextBatch,
    Operation,
    Periodic,
    Phase,
    Read,
    StageBatch,
    Work,
)
from tests.helpers.simulator.program import Program, RecorderOptions
from tests.helpers.simulator.simulation import simulated

MS = 1_000_000
US = 1_000
STEPS = 60


def program(*step: Operation, **options: object) -> Program:
    made = Program(seed=7, steps=STEPS, step=step, recorder=RecorderOptions())
    return replace(made, **options)  # type: ignore[arg-type]


def phase(name: str, place: int, launches: int, host_ns: int, device_ns: int) -> Phase:
    """A phase of kernels that take as long in each step."""
    kernels_ns = (device_ns // launches,) * launches
    return Phase(name, (Launches(place, Duration(host_ns), kernels_ns, Duration(1)),))


def read(place: int, site: int = 0, **options: int) -> Read:
    return Read(place, site, SyncKind.ITEM, Duration(10 * US), 1_500, **options)


DEVICE_BOUND = (phase("forward", 1, 100, 5 * US, 4 * MS), phase("backward", 2, 100, 5 * US, 8 * MS))
"""12 ms of work, launched in 1 ms."""


def saving(run: Run, change: Change, site: int = -1) -> ReplayedSaving:
    rows = analysis.of(run).savings.rows
    (row,) = (
        row for row in rows if row.change == change and row.site == site and row.is_inside is True
    )
    return row


def about(given: list[Finding]) -> list[str]:
    return [one.about for one in given]


# --- copies of results ---


def test_how_much_of_a_wait_is_the_copy_of_a_large_result_is_open() -> None:
    # 3 MB take 0.6 ms. The read behind it waits for all else.
    large = Read(3, 0, SyncKind.CPU, Duration(10 * US), 600 * US, 3_000_000)
    found = simulated(program(*DEVICE_BOUND, large, read(4, site=1)))
    row = saving(found.run, Change.SYNC, site=0)
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert truth_ns == pytest.approx(600 * US, abs=30 * US)
    assert row.low_ns < 50 * US
    assert row.likely_ns == pytest.approx(600 * US, rel=0.1)
    assert row.high_ns == pytest.approx(3_000 * US, rel=0.05)
    assert not row.is_told


# --- loaders ---


def with_workers(workers: int, make_ns: int, fetch_ns: int) -> Program:
    """4 ms of work on the device, and a loop that reads its result in each step."""
    loader = LoaderOptions(Duration(make_ns), workers=workers, fetch=Duration(fetch_ns))
    step = (Phase("data", (NextBatch(),)), phase("forward", 1, 100, 5 * US, 4 * MS), read(2))
    return program(*step, loader=loader)


def test_more_workers_do_not_make_it_faster_to_hand_over_batches() -> None:
    # Eight workers make a batch every 0.5 ms, which is there when the loop comes for it.
    found = simulated(with_workers(8, 4 * MS, 400 * US))
    row = saving(found.run, Change.DATA_WAIT)
    (truth_ns,) = found.saved_ns(Edit("workers"))

    assert truth_ns < 0.02 * analysis.of(found.run).savings.step_ns
    assert row.time_ns == pytest.approx(400 * US, rel=0.3)
    assert row.low_ns <= truth_ns
    assert "waiting for data" not in about(analysis.of(found.run).advice)


def test_workers_that_are_late_are_told_from_what_it_takes_to_hand_over_batches() -> None:
    found = simulated(with_workers(1, 8 * MS, 400 * US))
    row = saving(found.run, Change.DATA_WAIT)
    (truth_ns,) = found.saved_ns(Edit("workers"))

    assert truth_ns == pytest.approx(3_600 * US, rel=0.1)
    assert row.low_ns <= truth_ns <= row.high_ns
    assert about(analysis.of(found.run).advice)[0] == "waiting for data"


# --- what is likely ---


def test_a_device_that_is_far_behind_has_likely_been_at_work() -> None:
    # The host launches in 1 ms what takes the device 12 ms, and so keeps it waiting very shortly.
    found = simulated(program(*DEVICE_BOUND, read(3)))
    row = saving(found.run, Change.SYNC, site=0)
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert not row.is_told
    assert row.likely_ns < 2 * truth_ns


def test_what_is_not_told_orders_nothing() -> None:
    found = simulated(
        program(*DEVICE_BOUND, read(3), phase("log", 4, 1, 300 * US, 2 * US), read(5, site=1))
    )
    rows = analysis.of(found.run).savings.rows
    doubts = [each for each in analysis.of(found.run).doubts if each.high_ns is not None]

    assert [*rows] == sorted(rows, key=lambda row: (row.low_ns, row.high_ns), reverse=True)
    assert doubts == sorted(doubts, key=lambda each: each.high_ns or 0.0, reverse=True)


def test_a_loop_that_waits_for_workers_may_wait_longer_for_them() -> None:
    # A batch comes every 3 ms, and the loop needs it after 2. The device is not timed.
    loader = LoaderOptions(Duration(3 * MS), workers=1, fetch=Duration(50 * US))
    step = (Phase("data", (NextBatch(),)), phase("forward", 1, 100, 15 * US, 300 * US), read(2))
    found = simulated(program(*step, loader=loader, recorder=RecorderOptions(times_device=False)))
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert truth_ns < 5 * US
    assert saving(found.run, Change.SYNC, site=0).low_ns <= truth_ns


# --- the launch queue ---


def test_a_pause_is_hidden_for_no_longer_than_the_launch_queue_lasts() -> None:
    # Without the read the host would be ahead of 9 ms a step by as many as the queue holds, which
    # are seven. The pause lasts as long as 33 steps.
    loader = LoaderOptions(Duration(100 * US), pause_every=30, pause_ns=300 * MS)
    step = (Phase("data", (NextBatch(),)), phase("forward", 1, 150, 5 * US, 9 * MS), read(2))
    found = simulated(program(*step, loader=loader))
    row = saving(found.run, Change.SYNC, site=0)
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert row.low_ns <= truth_ns < row.high_ns
    assert truth_ns < 0.3 * row.high_ns


def test_one_graph_leaves_room_in_the_queue_for_other_launches() -> None:
    # 1,600 launches a step, and a loader that is late at times. A graph takes one place in the
    # queue, so that the host is further ahead when it comes to that.
    program = judged("deep queue", 9055)
    launches = [each for each in program.outcomes if each.edit.kind == "launches" and each.saving]

    assert any(each.truth_ns > each.saving.time_ns for each in launches)
    assert not any(each.is_beaten for each in launches)


def test_the_host_may_be_late_with_the_work_of_a_phase_before_which_it_was_ahead() -> None:
    # Behind 3 ms of work launched in 1 ms the host computes for 5 ms, and launches 4 ms more.
    late = Phase("backward", (Work(2, Duration(5 * MS)), *phase("", 3, 100, 5 * US, 4 * MS).body))
    found = simulated(program(phase("forward", 1, 200, 5 * US, 3 * MS), late, read(4)))
    row = saving(found.run, Change.SYNC, site=0)
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert truth_ns > 2 * MS
    assert row.low_ns < truth_ns < 1.01 * row.high_ns


def test_a_phase_whose_host_time_comes_back_is_not_device_bound_for_certain() -> None:
    # The optimizer launches its 4 ms of work within 0.5 ms, and computes for 2.5 ms before. The
    # device waits for it, but in each fourth step: those show that its work takes no longer.
    extra = replace(phase("extra", 6, 100, 5 * US, 20 * MS), every=4)
    late = Phase(
        "optimizer", (Work(5, Duration(2.5 * MS)), *phase("", 3, 100, 5 * US, 4 * MS).body)
    )
    found = simulated(program(phase("forward", 1, 100, 5 * US, 1 * MS), extra, late, read(4)))
    path = found.run.paths.index("optimizer")

    assert str(analysis.of(found.run).bottlenecks(Scope.STEP)[path]) == "device?"
    alone = simulated(program(*DEVICE_BOUND, read(3))).run
    assert {str(one) for one in analysis.of(alone).bottlenecks(Scope.STEP).values()} == {"device"}


# --- what comes first ---


def finding(kind: str, name: str, low_ns: float, high_ns: float) -> Finding:
    return Finding(kind, name, low_ns, high_ns, None, 100.0, "elapsed time", None, "", "", None)


SURE = finding("advice", "the sure", 4, 12), finding("advice", "the surer", 4, 5)


def test_a_doubt_that_may_save_far_more_comes_before_what_is_certain() -> None:
    for high_ns, first in ((48, "the sure"), (49, "the doubt")):
        doubt, failure = finding("doubt", "the doubt", 0, high_ns), finding("failure", "bad", 0, 0)
        assert about(in_order([*SURE, doubt, failure]))[:2] == ["bad", first]
    assert about(in_order([doubt])) == ["the doubt"]


def test_the_verdict_begins_with_such_a_doubt() -> None:
    run = simulated(program(*DEVICE_BOUND, read(3))).run
    found = in_order([*SURE, finding("doubt", "the doubt", 0, 60)])

    assert verdict(run, (), found, None, {}).endswith(
        "one change may save at most 60% of the elapsed time, but this run can't tell: no more "
        "the doubt; another could save 4% to 12% of the elapsed time: no more the sure."
    )
    parts = (part for part in savings_parts(None, found) if isinstance(part, Sentence))
    titles = [part.text for part in parts if part.kind == "title"]
    assert titles == ["May be worth a try: this run can't tell", "What to change"]


# --- steps that were not timed ---


def test_lost_device_times_leave_the_high_end_open() -> None:
    recorder = RecorderOptions(lost_share=0.3)
    found = simulated(program(*DEVICE_BOUND, read(3), recorder=recorder))
    row = saving(found.run, Change.SYNC, site=0)
    (doubt,) = analysis.of(found.run).doubts

    assert row.high_ns == min(row.time_ns, row.at_most_ns)
    assert analysis.of(found.run).premises.lost_times == pytest.approx(0.3, abs=0.1)
    assert doubt.evidence.endswith("% of the device's times were lost")
    whole = simulated(program(*DEVICE_BOUND, read(3))).run
    assert analysis.of(whole).premises.lost_times == 0


def test_a_wait_may_come_back_where_the_allocator_waits_for_the_device() -> None:
    for is_counted in (True, False):
        found = simulated(
            program(*DEVICE_BOUND, read(3), Flush(is_counted), Work(4, Duration(5 * MS)))
        )
        row = saving(found.run, Change.SYNC, site=0)
        (truth_ns,) = found.saved_ns(Edit("sync", site=0))

        assert truth_ns < 0.1 * MS
        assert (row.low_ns == 0) is is_counted
        if is_counted:
            assert not analysis.of(found.run).advice[:-1]
            (doubt,) = analysis.of(found.run).doubts
            assert doubt.evidence.startswith("1 times per step, PyTorch's allocator gives memory")


def test_the_start_of_the_workers_does_not_speak_for_steps_that_were_not_timed() -> None:
    # One step in 20 is timed, and the first one waits for the workers. Two workers make a batch
    # every 4.5 ms, for 4 ms of work; at times they are late.
    make = Duration(9 * MS, spread=0.3)
    loader = LoaderOptions(make, workers=2, startup_ns=120 * MS, fetch=Duration(100 * US))
    step = (Phase("data", (NextBatch(),)), phase("forward", 1, 100, 5 * US, 4 * MS), read(2))
    recorder = RecorderOptions(every=20)
    found = simulated(program(*step, loader=loader, recorder=recorder))
    row = saving(found.run, Change.DATA_WAIT)
    (truth_ns,) = found.saved_ns(Edit("workers"))

    assert row.low_ns <= truth_ns <= row.high_ns
    assert row.likely_ns < 2 * truth_ns


def test_what_the_host_does_between_timed_steps_is_not_taken_for_work_of_the_device() -> None:
    # The device is idle for 3 ms behind each read, while the host works between steps.
    between = (Work(3, Duration(3 * MS)),)
    step = (phase("forward", 1, 100, 5 * US, 4 * MS), read(2))
    recorder = RecorderOptions(every=3)
    found = simulated(program(*step, between=between, recorder=recorder))
    row = saving(found.run, Change.SYNC, site=0)
    (truth_ns,) = found.saved_ns(Edit("sync", site=0))

    assert truth_ns > 3 * MS
    assert row.low_ns <= truth_ns <= row.high_ns
    assert about(analysis.of(found.run).advice)[0] == ".item() at train.py:10"


# --- other streams and ranks ---


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"ranks": 1},
        {"other_streams": False},
        {"other_streams": True, "ranks": 1},
    ],
)
def test_a_device_that_may_wait_for_another_stream_is_no_limit(facts: dict[str, object]) -> None:
    run = simulated(program(*DEVICE_BOUND, read(3))).run
    known = saving(run, Change.SYNC, site=0)
    assert known.limit == Limit.DEVICE
    assert "backward" in about(analysis.of(run).advice)

    run = simulated(program(*DEVICE_BOUND, read(3))).run
    run.environment[KEY] = facts
    row = saving(run, Change.SYNC, site=0)

    assert row.limit == Limit.TIME
    assert row.at_most_ns >= row.high_ns == row.time_ns > known.at_most_ns
    assert analysis.of(run).savings.busy_ns is None
    assert "backward" not in about(analysis.of(run).advice)
    assert ".item() at train.py:10" in about(analysis.of(run).doubts)


def test_a_wait_for_a_prefetcher_is_not_taken_for_work() -> None:
    # The copy of the next batch takes 9 ms, and the stream waits for it before 2 ms of work.
    step = (
        AwaitStaged(),
        phase("forward", 1, 50, 5 * US, 2 * MS),
        read(2),
        Phase("h2d", (StageBatch(3, Duration(10 * US), Duration(9 * MS)),)),
        Phase("log", (Work(4, Duration(8 * MS)),)),
    )
    made = program(*step)
    before = simulated(made)
    run = before.run
    (saved_ns,) = before.saved_ns(Edit("sync", site=0))
    row = saving(run, Change.SYNC, site=0)

    assert run.program_facts.other_streams is True
    assert row.low_ns - 0.05 * MS <= saved_ns <= row.high_ns <= row.at_most_ns
    assert row.at_most_ns >= row.time_ns
    assert all("AMP" not in str(one.edit) for one in analysis.of(run).advice)


def test_what_one_of_several_ranks_saves_is_not_told() -> None:
    run = simulated(program(*DEVICE_BOUND, read(3), Phase("log", (Work(4, Duration(5 * MS)),)))).run
    run.environment[KEY] = {"other_streams": True, "ranks": 8}
    row = saving(run, Change.SYNC, site=0)

    assert (row.low_ns, row.at_most_ns, row.limit) == (0, math.inf, Limit.NONE)
    assert analysis.of(run).advice == []
    (doubt,) = (one for one in analysis.of(run).doubts if one.about == subject(run, row))
    assert doubt.evidence == "when the stream looks busy it may be waiting for another rank"
    report = run.report(verbose=True, width=110, color=False)
    (line,) = (line for line in report.splitlines() if line.startswith(".item() at train.py:10"))
    assert line.split()[8] == "-"


# --- a full launch queue ---


def test_a_full_launch_queue_is_no_launch_bound_phase() -> None:
    # 3,000 kernels of 20 us, launched every 5 us: the host is at most 64 of them ahead.
    step = (
        phase("forward", 1, 1_000, 5 * US, 20 * MS),
        phase("backward", 2, 2_000, 5 * US, 40 * MS),
    )
    before = simulated(program(*step, queue_depth=64))
    found = analysis.of(before.run)
    kinds = {
        before.run.paths[path]: one.kind for path, one in found.bottlenecks(Scope.STEP).items()
    }

    assert kinds == {"forward": Bottleneck.DEVICE, "backward": Bottleneck.DEVICE}
    # Nor is it proven what the device did before the host had launched all.
    assert about(found.advice) == []
    assert about(found.doubts) == []


# --- loaders ---


def _with_loader(make_ns: int, workers: int) -> Program:
    step = (
        Phase("data", (NextBatch(),)),
        phase("forward", 1, 50, 10 * US, 4 * MS),
        read(2),
        Phase("log", (Work(3, Duration(3 * MS)),)),
    )
    return program(
        *step, loader=LoaderOptions(Duration(make_ns), workers=workers, fetch=Duration(50 * US))
    )


def test_where_workers_are_the_limit_other_waits_save_nothing() -> None:
    before = simulated(_with_loader(30 * MS, workers=2))
    run = before.run
    (saved_ns,) = before.saved_ns(Edit("sync", site=0))
    row = saving(run, Change.SYNC, site=0)

    assert row.time_ns > 3 * MS
    assert saved_ns < 0.2 * MS
    assert row.likely_ns == pytest.approx(saved_ns, abs=0.2 * MS)
    assert about(analysis.of(run).advice) == ["waiting for data"]


def test_where_batches_are_there_they_are_no_limit() -> None:
    before = simulated(_with_loader(6 * MS, workers=2))
    (saved_ns,) = before.saved_ns(Edit("sync", site=0))
    row = saving(before.run, Change.SYNC, site=0)

    assert saved_ns > 2 * MS
    assert row.low_ns - 0.05 * MS <= saved_ns <= row.high_ns + 0.05 * MS


def test_with_an_unknown_number_of_workers_both_may_be() -> None:
    run = simulated(_with_loader(30 * MS, workers=2)).run
    run.environment[KEY] = {"other_streams": False, "ranks": 1}
    row = saving(run, Change.SYNC, site=0)

    assert row.low_ns < 0.2 * MS
    assert row.high_ns > 2.5 * MS


def test_a_loader_that_is_started_anew_waits_for_the_loop() -> None:
    # 10 epochs, in each of which workers start for 200 ms: what is saved in one is not waited for
    # at the begin of the next.
    made = _with_loader(6 * MS, workers=2)
    assert made.loader is not None
    made = replace(made, loader=replace(made.loader, startup_ns=200 * MS, epoch=6))
    before = simulated(made)
    (saved_ns,) = before.saved_ns(Edit("sync", site=0))
    row = saving(before.run, Change.SYNC, site=0)

    assert row.low_ns - 0.1 * MS <= saved_ns <= row.high_ns + 0.1 * MS
    assert row.likely_ns > 1 * MS


# --- what was not recorded ---


@pytest.mark.parametrize("every", [2, 7, 16])
def test_steps_that_were_timed_stand_for_the_others(every: int) -> None:
    made = program(*DEVICE_BOUND, read(3), Phase("log", (Work(4, Duration(5 * MS)),)))
    sampled = replace(made, recorder=replace(made.recorder, every=every))
    all_timed = saving(simulated(made).run, Change.SYNC, site=0)
    run = simulated(sampled).run
    some_timed = saving(run, Change.SYNC, site=0)
    found = analysis.of(run).savings

    assert (found.steps, found.replayed) == (STEPS, STEPS // every)
    assert some_timed.likely_ns == pytest.approx(all_timed.likely_ns, rel=0.05)
    assert some_timed.time_ns == pytest.approx(all_timed.time_ns, rel=0.02)
    assert f"of which {STEPS // every} timed" in " ".join(
        run.report(verbose=True, width=110).split()
    )


def test_a_wait_in_a_step_that_was_not_timed_may_save_all_or_nothing() -> None:
    # The waits are in steps 0 and 6, and the odd ones were timed.
    made = program(*DEVICE_BOUND, read(3, every=6), steps=12)
    made = replace(made, recorder=replace(made.recorder, every=2))
    before = simulated(made)
    (saved_ns,) = before.saved_ns(Edit("sync", site=0))
    row = saving(before.run, Change.SYNC, site=0)

    assert row.low_ns <= saved_ns <= row.high_ns
    assert row.low_ns == 0 < row.high_ns
    assert not row.is_told


def test_what_was_not_recorded_is_named() -> None:
    options = RecorderOptions(watches=False)
    unwatched = simulated(program(*DEVICE_BOUND, read(3), recorder=options)).run
    options = RecorderOptions(times_device=False)
    untimed = simulated(program(*DEVICE_BOUND, read(3), recorder=options)).run

    assert about(analysis.of(unwatched).doubts)[0] == "waits for the device"
    assert about(analysis.of(untimed).doubts)[0] == "launches"
    assert "syncs were not watched" in " ".join(unwatched.report(verbose=True, width=110).split())


def test_launches_are_not_advised_but_named() -> None:
    step = (
        Phase("forward", (Work(1, Duration(4 * MS)), *phase("", 2, 50, 20 * US, 500 * US).body)),
    )
    run = simulated(program(*step)).run

    assert saving(run, Change.LAUNCHES).low_ns == 0
    assert about(analysis.of(run).advice) == []
    assert about(analysis.of(run).doubts) == ["launches in forward"]


# --- what lies between steps ---


@pytest.mark.parametrize("turns", [1, 10])
def test_advice_does_not_depend_on_how_long_validation_is(turns: int) -> None:
    validation = Periodic(
        "eval", 10, turns, (phase("forward", 5, 50, 10 * US, 2 * MS), read(6, site=1))
    )
    made = program(
        *DEVICE_BOUND, read(3), Phase("log", (Work(4, Duration(5 * MS)),)), periodic=(validation,)
    )
    run = simulated(made).run
    found = analysis.of(run).savings
    row = saving(run, Change.SYNC, site=0)
    durations_ns = durations_ns_of(run.steps.array)

    assert found.step_ns == pytest.approx(float(durations_ns.mean()))
    assert found.elapsed_ns > found.step_ns + turns * 0.15 * MS
    total = analysis.of(run).time_budget.means()
    assert sum(mean.time_ns for mean in total[1].values()) == pytest.approx(found.step_ns)
    assert row.time_ns == pytest.approx(11 * MS, rel=0.05)
    assert row.likely_ns == pytest.approx(2.5 * MS, rel=0.25)
    named = about([*analysis.of(run).advice, *analysis.of(run).doubts])
    assert named[0] == ".item() at train.py:10"


def test_a_wait_after_the_last_step_counts() -> None:
    last = Periodic("checkpoint", STEPS, 1, (read(6), Work(7, Duration(1 * MS))))
    before = simulated(program(*DEVICE_BOUND, periodic=(last,)))
    run = before.run
    (row,) = (row for row in analysis.of(run).savings.rows if row.site == 0)
    (saved_ns,) = before.saved_ns(Edit("sync", site=0, is_inside=False))

    assert not row.is_inside
    assert saved_ns <= row.high_ns <= row.at_most_ns


# --- comparing ---


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (RecorderOptions(), Verdict.SAME),
        (RecorderOptions(every=16), Verdict.SAME),
        (RecorderOptions(times_device=False), Verdict.AMBIGUOUS),
        (RecorderOptions(times_device=False, watches=False), Verdict.AMBIGUOUS),
    ],
)
@pytest.mark.parametrize("queue_depth", [1_024, 20_000])
def test_a_device_that_is_not_done_yet_is_no_faster(
    options: RecorderOptions, verdict: Verdict, queue_depth: int
) -> None:
    # Without the read the host runs ahead of the device, as far as the queue lets it.
    sides = [
        [
            simulated(
                replace(program(*step, recorder=options, queue_depth=queue_depth), seed=seed)
            ).run
            for seed in range(3)
        ]
        for step in ((*DEVICE_BOUND, read(3)), DEVICE_BOUND)
    ]
    comparison = compare(*sides)

    assert comparison.verdict == verdict
    assert any("device was done" in one for one in comparison.warnings) == (
        verdict is Verdict.AMBIGUOUS
    )


# --- copies ---


def test_a_copy_from_pageable_memory_is_waited_for_and_stays() -> None:
    copy = Copy(3, 0, SyncKind.H2D_PAGEABLE, Duration(10 * US), 4_000_000, 5.0, 20.0)
    before = simulated(program(*DEVICE_BOUND, copy, Phase("log", (Work(4, Duration(5 * MS)),))))
    (saved_ns,) = before.saved_ns(Edit("copies", is_inside=None))
    run = before.run
    row = saving(run, Change.COPIES)

    assert (analysis.of(run).correlation_points.site >= 0).sum() == STEPS
    assert row.low_ns - 0.05 * MS <= saved_ns <= row.high_ns + 0.05 * MS
    assert saved_ns <= row.at_most_ns
