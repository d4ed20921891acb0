# SPDX-License-Identifier: Apache-2.0
"""Savings, against programs that are run with their waits and without, and the advice in them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis import advice as advising
from pyinstrument_gpu.analysis.advice import Finding, advice
from pyinstrument_gpu.analysis.correlation_points import CorrelationPoints
from pyinstrument_gpu.analysis.intervals import covered_before
from pyinstrument_gpu.analysis.replay import fit, replay
from pyinstrument_gpu.analysis.savings import (
    NO_SAVINGS,
    Change,
    Limit,
    ReplayedSaving,
    ReplayedSavings,
)
from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import Syncs, SyncSite
from tests.helpers.device_program import attached_cuda
from tests.helpers.made_runs import run_of
from tests.helpers.sync_program import STEPS, Launch, Made, Ran, Sync, draw, ran

MS = 1_000_000
NONE_EMPTY = np.zeros(100, dtype=bool)


def run_of_program(made: Made) -> Ran:
    with attached_cuda() as cuda:
        return ran(made, cuda)


def savings_of(made: Made) -> Iterator[tuple[ReplayedSaving, float]]:
    """What is said of each change that a program could have, and what it did save per step. Copies
    are made from pinned memory, launches at once; the rest is taken out."""
    before = run_of_program(made)
    found = analysis.of(before.run).savings
    for said in found.rows:
        if said.change == Change.SYNC:
            changed = made.without(said.site)
        elif said.change == Change.ALL_SYNCS:
            changed = made.without(*(sync.site for sync in made.syncs))
        elif said.change == Change.DATA_WAIT:
            changed = made.without_loader()
        elif said.change == Change.COPIES:
            changed = made.with_pinned_copies()
        else:
            name = before.run.paths[said.path]
            changed = made.launched_at_once(int(name.removeprefix("phase")))
        yield said, (before.elapsed_ns - run_of_program(changed).elapsed_ns) / STEPS


# --- the backlog model ---


@st.composite
def timelines(draw: st.DrawFn) -> CorrelationPoints:
    """Any correlation points that can be: phases or syncs, with the device at any distance."""
    times = st.integers(0, 40_000) | st.integers(0, 50 * MS)
    kinds, hosts, resumes, devices, sites = [], [0], [0], [0], [-1]
    kinds.append(0)
    for _ in range(draw(st.integers(1, 30))):
        hosts.append(resumes[-1] + draw(times))
        devices.append(max(devices[-1], hosts[-1] if draw(st.booleans()) else 0) + draw(times))
        kind = draw(st.integers(-2, 3))
        wait_ns = max(devices[-1] - hosts[-1], 0) + draw(times) if kind < 0 else 0
        resumes.append(hosts[-1] + wait_ns)
        kinds.append(kind)
        sites.append(-1 - kind if kind < 0 else -1)
    none = np.zeros(len(hosts), np.int64)
    columns = (np.array(values, np.int64) for values in (hosts, resumes, devices))
    host_ns, resume_ns, device_ns = columns
    return CorrelationPoints(
        thread=0,
        stream=0,
        is_only_stream=True,
        host_ns=host_ns,
        resume_ns=resume_ns,
        device_ns=device_ns,
        uncertainty_ns=none,
        slack_ns=none,
        path=none,
        site=np.array(sites, np.int64),
        kind=np.array(kinds, np.int64),
        is_behind_cut=np.zeros(len(hosts), dtype=bool),
    )


@settings(max_examples=30)
@given(timelines())
def test_played_again_with_all_of_it_a_run_is_as_it_was(found: CorrelationPoints) -> None:
    again = replay(found, fit(found, NONE_EMPTY[: len(found) - 1]))

    assert again.host_ns.tolist() == found.host_ns.tolist()
    assert again.device_ns.tolist() == found.device_ns.tolist()


@settings(max_examples=30)
@given(timelines(), st.data())
def test_without_a_sync_nothing_is_later_and_nothing_sooner_by_more(
    found: CorrelationPoints, data: st.DataObject
) -> None:
    syncs = np.flatnonzero(found.site >= 0).tolist()
    out = np.zeros(len(found), dtype=bool)
    out[data.draw(st.lists(st.sampled_from(syncs))) if syncs else []] = True
    again = replay(found, fit(found, NONE_EMPTY[: len(found) - 1]), out)

    taken_ns = np.append(0, np.cumsum((found.resume_ns - found.host_ns) * out)[:-1])
    for before_ns, after_ns in (
        (found.host_ns, again.host_ns),
        (found.device_ns, again.device_ns),
    ):
        assert (after_ns <= before_ns).all()
        assert (before_ns - after_ns <= taken_ns).all()


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8),
    st.lists(st.integers(-10, 900), min_size=1),
)
def test_covered_before(parts: list[tuple[int, int]], times: list[int]) -> None:
    edges = np.cumsum(np.array(parts, np.int64).reshape(-1))
    begins_ns, ends_ns = edges[::2], edges[1::2]
    covered = {t for begin, end in zip(begins_ns, ends_ns, strict=True) for t in range(begin, end)}

    assert covered_before(begins_ns, ends_ns, np.array(times, np.int64)).tolist() == [
        sum(t < time for t in covered) for time in times
    ]


# --- known answers ---


def _program(device_ns: int, host_ns: int, syncs: int = 1, loader_ns: int = 0) -> Made:
    """A phase of one kernel, which is read at once; after it the host computes."""
    return Made(
        phases=((Launch(10_000, device_ns),), (Launch(host_ns, 2_000),)),
        syncs=tuple(Sync(0, 0, False, 15_000, 3_000, site) for site in range(syncs)),
        loader_ns=(loader_ns,) * STEPS,
    )


def _row(found: ReplayedSavings, change: Change, site: int = -1) -> ReplayedSaving:
    (row,) = (row for row in found.rows if row.change == change and row.site == site)
    return row


@pytest.mark.parametrize(
    ("device_ns", "host_ns", "likely_ns"),
    [
        # Then the device is the limit. Events can't tell what it does in the 5 ms after the sync,
        # from 0 to 5 ms.
        (20 * MS, 5 * MS, 2.5 * MS),
        # Then the host is.
        (5 * MS, 20 * MS, 5 * MS),
    ],
)
def test_a_sync_saves_the_smaller_of_host_and_device(
    device_ns: int, host_ns: int, likely_ns: float
) -> None:
    found = analysis.of(run_of_program(_program(device_ns, host_ns)).run).savings
    row = _row(found, Change.SYNC, site=0)

    assert found.steps == STEPS
    assert row.calls == 1
    assert row.time_ns == pytest.approx(device_ns, abs=0.05 * MS)
    assert row.likely_ns == pytest.approx(likely_ns, abs=0.1 * MS)
    assert row.likely_ns <= row.at_most_ns
    assert row.at_most_ns == pytest.approx(5 * MS, abs=0.2 * MS)
    assert row.limit == (Limit.DEVICE if device_ns > host_ns else Limit.TIME)


def test_the_wait_moves_to_the_next_sync() -> None:
    found = analysis.of(run_of_program(_program(20 * MS, 20 * MS, syncs=2)).run).savings

    # Each alone is waited for at the other.
    assert _row(found, Change.SYNC, site=0).likely_ns < 0.1 * MS
    assert _row(found, Change.SYNC, site=0).time_ns > 19 * MS
    assert _row(found, Change.ALL_SYNCS).likely_ns > 9 * MS
    assert found.rows[0].change == Change.ALL_SYNCS


def test_the_wait_for_data() -> None:
    found = analysis.of(
        run_of_program(_program(30 * MS, 1 * MS, syncs=1, loader_ns=10 * MS)).run
    ).savings
    row = _row(found, Change.DATA_WAIT)

    assert row.time_ns == pytest.approx(10 * MS, abs=0.01 * MS)
    assert row.likely_ns == pytest.approx(10 * MS, abs=0.1 * MS)
    assert row.spread_ns == pytest.approx((10 * MS, 10 * MS), abs=0.1 * MS)


def test_without_device_times_the_wait_for_data_is_the_saving() -> None:
    run = run_of_program(_program(30 * MS, 1 * MS, syncs=1, loader_ns=10 * MS)).run
    for name in ("device", "stream", "device_begin_ns", "device_end_ns"):
        run.spans[name] = -1
    run.span_device_ns[:] = -1
    run.device_clocks = ()
    row = _row(analysis.of(run).savings, Change.DATA_WAIT)

    assert row.likely_ns == pytest.approx(10 * MS, abs=0.1 * MS)
    assert row.spread_ns == pytest.approx((10 * MS, 10 * MS), abs=0.1 * MS)
    assert row.limit == Limit.TIME


def test_launches_save_what_the_device_does_not_need() -> None:
    launches = (Launch(1 * MS, 10_000),) * 10
    found = analysis.of(run_of_program(Made((launches,), (), (0,) * STEPS)).run).savings
    row = _row(found, Change.LAUNCHES)

    assert row.path == 0
    assert row.time_ns == pytest.approx(10 * MS, abs=0.1 * MS)
    assert 0 < row.likely_ns < row.at_most_ns
    # 0.1 of 10 ms are work: events can't tell, and the model says half.
    assert row.likely_ns == pytest.approx(5 * MS, abs=0.1 * MS)


def test_copies_to_the_device_are_one_saving() -> None:
    run = run_of_program(_program(1 * MS, 1 * MS, syncs=2)).run
    kinds = (SyncKind.H2D_PAGEABLE, SyncKind.H2D_PINNED)
    sites = [SyncSite("a.py", 1, "f", kind, False) for kind in kinds]
    run.syncs = Syncs(tuple(sites), run.syncs.events, run.syncs.watched_ns)
    found = analysis.of(run).savings

    assert _row(found, Change.COPIES).calls == 2
    assert _row(found, Change.COPIES).time_ns == _row(found, Change.ALL_SYNCS).time_ns
    assert all(row.change != Change.SYNC for row in found.rows)


def test_waits_that_are_allowed_are_left_in() -> None:
    run = run_of_program(_program(20 * MS, 5 * MS)).run
    sites = (SyncSite("a.py", 1, "f", SyncKind.ITEM, is_allowed=True),)
    run.syncs = Syncs(sites, run.syncs.events, run.syncs.watched_ns)

    assert {row.change for row in analysis.of(run).savings.rows} <= {Change.LAUNCHES}


def test_nothing_to_save() -> None:
    assert analysis.of(Run()).savings == NO_SAVINGS
    assert analysis.of(Run()).advice == []


def test_without_device_times_the_device_is_no_limit() -> None:
    run = run_of_program(_program(20 * MS, 5 * MS)).run
    run.device_clocks = ()
    row = _row(analysis.of(run).savings, Change.SYNC, site=0)

    assert analysis.of(run).savings.busy_ns is None
    assert row.limit == Limit.TIME
    assert row.at_most_ns > 19.9 * MS


def test_on_several_streams_the_device_is_no_limit() -> None:
    run = run_of_program(_program(20 * MS, 5 * MS)).run
    run.spans["stream"][-1] = 1

    assert not analysis.of(run).correlation_points.is_only_stream
    assert analysis.of(run).savings.busy_ns is None


# --- programs at random ---


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param((1, 2, 3, 21), id="few"),
        pytest.param((8, 12, 17, 18, 23), id="some", marks=pytest.mark.thorough),
        pytest.param(range(1_000, 2_000), id="many", marks=pytest.mark.slow),
    ],
)
def test_at_most_is_never_beaten(seeds: Sequence[int]) -> None:
    for seed in seeds:
        for said, saved_ns in savings_of(draw(seed, copies=seed % 2 == 1)):
            assert max(saved_ns, said.likely_ns) <= said.at_most_ns, seed


# --- advice ---


def _saving(
    change: Change = Change.SYNC, likely_ns: float = 2 * MS, **parts: int
) -> ReplayedSaving:
    """One of a step of 100 ms."""
    where = {"site": -1, "path": -1, **parts}
    spread_ns = (likely_ns, likely_ns)
    return ReplayedSaving(
        change=change,
        site=where["site"],
        path=where["path"],
        is_inside=True,
        calls=1,
        time_ns=9 * MS,
        low_ns=likely_ns,
        likely_ns=likely_ns,
        high_ns=9 * MS,
        at_most_ns=9 * MS,
        spread_ns=spread_ns,
        limit=Limit.TIME,
    )


def _advice(
    *rows: ReplayedSaving, steps: int = 50, kind: SyncKind = SyncKind.ITEM
) -> list[Finding]:
    names = ("forward", "optimizer2", "zero_grad")
    run = run_of([], names, path_parents=[-1] * 3)
    run.syncs = Syncs((SyncSite("train.py", 31, "train", kind, False),))
    found, about = ReplayedSavings(steps, steps, 100 * MS, 120 * MS, None, rows), analysis.of(run)
    return advice(run, found, about.time_budget, about.premises)


def test_advice_names_place_edit_and_numbers() -> None:
    (given,) = _advice(_saving(site=0))

    assert given.about == ".item() at train.py:31"
    assert "MetricAccumulator" in (given.edit or "")
    assert given.evidence == (
        "takes 9.000 of 100.000 ms per step; saves 2.000 to 9.000 ms, "
        "because part of the wait may move elsewhere"
    )
    assert (given.low_ns, given.high_ns, given.of_ns, given.of) == (
        2 * MS,
        9 * MS,
        100 * MS,
        "step",
    )
    assert given.likely_ns is None  # the range is too wide
    (given,) = _advice(replace(_saving(site=0), high_ns=8 * MS))
    assert given.evidence.endswith(
        "saves 2.000 to 8.000 ms, because part of the wait moves elsewhere"
    )


def test_no_advice_without_evidence() -> None:
    assert _advice(_saving(site=0, likely_ns=1 * MS - 1)) == []
    assert _advice(_saving(site=0), steps=advising.MIN_STEPS - 1) == []
    # What all syncs would save is said in the table; each site has its own edit.
    assert _advice(_saving(Change.ALL_SYNCS)) == []


@pytest.mark.parametrize(
    ("saving", "about", "edit"),
    [
        (_saving(Change.COPIES), "copies to the device", "pin_memory=True"),
        (_saving(Change.DATA_WAIT), "waiting for data", "persistent_workers=True"),
        (_saving(Change.LAUNCHES, path=0), "launches in forward", "CUDA graphs"),
        (_saving(Change.LAUNCHES, path=1), "launches in optimizer2", "fused=True"),
        (_saving(Change.LAUNCHES, path=2), "launches in zero_grad", "set_to_none=True"),
    ],
)
def test_each_change_has_its_edit(saving: ReplayedSaving, about: str, edit: str) -> None:
    (given,) = _advice(saving)

    assert given.about == about
    assert edit in (given.edit or "")


def test_a_doubt_about_launches_counts_them_where_steps_were_profiled() -> None:
    saving = replace(_saving(Change.LAUNCHES, path=0), low_ns=0.0)
    run = run_of((), names=("forward",))
    found = replace(NO_SAVINGS, steps=advising.MIN_STEPS, step_ns=saving.time_ns, rows=(saving,))
    premises = analysis.of(run).premises
    (without,) = advising.doubts(run, found, premises)
    assert without.evidence.endswith("and not on the program's own work")

    launched = Operation("aten::mm", "forward", 15, 1, 1, 1_500)
    run.operations = Operations(steps=2, operations=(launched,), device=DeviceUse(1, 1, 1))
    (counted,) = advising.doubts(run, found, premises)
    assert counted.evidence == f"{without.evidence}; it launches 1,500 times per step"


@pytest.mark.parametrize("kind", [kind for kind in SyncKind if kind not in (11, 12)])
def test_each_kind_of_sync_has_an_edit(kind: SyncKind) -> None:
    (given,) = _advice(_saving(site=0), kind=kind)

    assert given.edit


def test_a_busy_device_is_the_limit() -> None:
    run = run_of_program(_program(20 * MS, 1 * MS, syncs=0)).run
    found = analysis.of(run).savings
    given = analysis.of(run).advice

    assert found.busy_ns is not None
    assert found.busy_ns > 0.99 * found.step_ns
    assert [(one.about, one.low_ns) for one in given] == [("phase0", None)]
    assert "AMP" in (given[0].edit or "")


# --- the report ---


def test_the_report_shows_the_interval_and_the_edit() -> None:
    run = run_of_program(_program(5 * MS, 20 * MS)).run
    report = run.report(verbose=True, width=110, color=False)
    lines = report.split("What a change could save: ms per step\n")[1].splitlines()

    assert lines[0].split("  ")[0] == "removed"
    (row,) = (line.split() for line in lines if line.startswith(".item() at train.py:10"))
    low, high, at_most = (float(row[place]) for place in (5, 7, 8))
    assert row[3] == "1.00"
    assert low < 0.1
    assert 4.9 < high <= at_most < 5.1
    # The range is too wide to tell what is likely.
    assert row[6] == "?"
    assert "May be worth a try: this run can't tell" in report
    assert "- .item() at train.py:10: keep the value on the device" in report
    assert (
        "p10"
        not in run.report(verbose=True, width=80, color=False)
        .split("What a change")[1]
        .split("\n\n")[0]
    )


def test_a_run_of_the_host_alone_has_no_savings() -> None:
    run = run_of([], path_parents=[-1, -1])

    assert "What a change could save" not in run.report(verbose=True, width=80)
