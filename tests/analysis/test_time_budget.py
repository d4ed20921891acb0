# SPDX-License-Identifier: Apache-2.0
"""The time budget: sums, blocked and idle times, against hand-made runs and the simulation."""

from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.intervals import covered_before
from pyinstrument_gpu.analysis.time_budget import DEVICE_COLUMNS, TimeBudgetEntries
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.record import named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite
from tests.helpers.device_program import attached_cuda
from tests.helpers.made_runs import run_of
from tests.helpers.sync_program import STEPS, Launch, Made, Ran, Sync, draw, ran

MS = 1_000_000
STREAMS = named_streams([(0, 0)])
NAMES = ("data", "forward", "log", "attention")
DATA, FORWARD, LOG, ATTENTION = range(4)


def span(
    path: int,
    host: tuple[int, int],
    device: tuple[int, int] | None = None,
    step: int = 0,
    depth: int = 0,
) -> tuple[int, ...]:
    """A span by its times in ms."""
    where = (path, path, step, depth, 0)
    stream = (-1, -1) if device is None else (0, 0)
    times = (MS * t for t in (*host, *(device or (0, 0))))
    host_device = [*times]
    if device is None:
        host_device[2:] = [-1, -1]
    return (*where, *stream, *host_device, -1, 1)


def made(
    spans: list[tuple[int, ...]],
    steps: list[tuple[int, int]],
    waits: list[tuple[int, int]] | None = None,
    *,
    kind: SyncKind = SyncKind.ITEM,
    dropped: int = 0,
) -> Run:
    """A run by its spans, its steps and the waits in it, in ms; watched if there is a list."""
    rows: list[tuple[Any, ...]] = [
        (number, MS * begin, MS * end, 1.0, 1, True, 0) for number, (begin, end) in enumerate(steps)
    ]
    run = run_of(
        spans,
        NAMES,
        path_parents=[-1, -1, -1, FORWARD],
        streams=STREAMS,
        steps=Steps(np.array(rows, STEP_DTYPE)),
        duration_ns=1000 * MS,
        environment={"program_facts": {"other_streams": False, "ranks": 1}},
    )
    if waits is not None:
        events = np.zeros(len(waits), SYNC_DTYPE)
        events["begin_ns"] = [MS * begin for begin, _ in waits]
        events["duration_ns"] = [MS * (end - begin) for begin, end in waits]
        site = SyncSite("train.py", 7, "train", kind, False)
        run.syncs = Syncs((site,), events, ((0, run.duration_ns),), dropped=dropped)
    return run


def time_budget(run: Run) -> TimeBudgetEntries:
    return analysis.of(run).time_budget


def wall_ns(found: TimeBudgetEntries) -> Any:
    """The duration of each step."""
    return durations_ns_of(found.steps)


def row(found: TimeBudgetEntries, path: int, step: int = 0) -> dict[str, float]:
    """The entry of a path, in ms; unknown as -1."""
    (entry,) = found.entries[(found.entries["step"] == step) & (found.entries["path"] == path)]
    return {
        name: int(entry[name]) / MS if entry[name] >= 0 else -1
        for name in ("host_ns", "blocked_ns", *DEVICE_COLUMNS)
    }


def sums(found: TimeBudgetEntries, *columns: str) -> list[int]:
    """The sum of some columns in each step."""
    total = np.zeros(len(found.steps), np.int64)
    position = np.searchsorted(found.steps["index"], found.entries["step"])
    for column in columns:
        np.add.at(total, position, found.entries[column])
    values: list[int] = total.tolist()
    return values


def assert_adds_up(found: TimeBudgetEntries) -> None:
    assert sums(found, "host_ns") == wall_ns(found).tolist()
    if found.is_timed.all():
        assert sums(found, *DEVICE_COLUMNS) == wall_ns(found).tolist()


# --- the host's side ---


def test_own_times_and_what_is_outside_of_phases() -> None:
    found = time_budget(
        made(
            [
                span(DATA, (10, 14)),
                span(ATTENTION, (20, 27), depth=1),
                span(FORWARD, (15, 30)),
            ],
            [(10, 40)],
            waits=[(21, 24), (28, 29), (35, 38)],
        )
    )

    assert row(found, DATA)["host_ns"] == 4
    assert (row(found, FORWARD)["host_ns"], row(found, FORWARD)["blocked_ns"]) == (8, 1)
    assert (row(found, ATTENTION)["host_ns"], row(found, ATTENTION)["blocked_ns"]) == (7, 3)
    assert (row(found, -1)["host_ns"], row(found, -1)["blocked_ns"]) == (11, 3)
    assert_adds_up(found)


def test_a_span_counts_in_each_step_with_what_lies_in_it() -> None:
    # One that outlasts its step, and one around the loop.
    found = time_budget(
        made(
            [span(LOG, (5, 33)), span(FORWARD, (0, 90), step=-1)],
            [(0, 10), (20, 40)],
            waits=[(8, 22)],
        )
    )

    assert row(found, LOG, 0) == row(found, LOG, 0) | {"host_ns": 5, "blocked_ns": 2}
    assert row(found, LOG, 1) == row(found, LOG, 1) | {"host_ns": 13, "blocked_ns": 2}
    assert row(found, FORWARD, 0)["host_ns"] == 5
    assert_adds_up(found)


@pytest.mark.parametrize("dropped", [None, 3])
def test_blocked_is_unknown_where_waits_may_be_missing(dropped: int | None) -> None:
    waits = None if dropped is None else [(1, 2)]
    found = time_budget(made([span(LOG, (0, 5))], [(0, 10)], waits, dropped=dropped or 0))

    assert set(found.entries["blocked_ns"].tolist()) == {-1}
    assert_adds_up(found)


def test_a_run_without_steps_or_spans() -> None:
    assert len(time_budget(made([], [])).entries) == 0
    assert len(time_budget(Run()).entries) == 0
    assert row(time_budget(made([], [(0, 10)])), -1)["host_ns"] == 10


# --- the device's side ---


def test_where_all_work_was_enqueued_the_device_is_busy() -> None:
    found = time_budget(made([span(FORWARD, (10, 12), (10, 30))], [(10, 40)]))

    # 10 us after the host had left, at the latest, what it enqueued was under way.
    assert row(found, FORWARD) == {
        "host_ns": 2,
        "blocked_ns": -1,
        "busy_ns": 17.99,
        "data_wait_ns": 0,
        "sync_wait_ns": 0,
        "host_wait_ns": 0,
        "unknown_ns": 2.01,
    }
    assert row(found, -1)["unknown_ns"] == 10
    assert_adds_up(found)


def test_at_the_host_s_pace_events_prove_nothing() -> None:
    found = time_budget(made([span(FORWARD, (10, 30), (10, 30))], [(10, 30)]))

    assert row(found, FORWARD)["unknown_ns"] == 20


def test_the_device_waits_for_data() -> None:
    spans = [
        span(FORWARD, (10, 12), (10, 30)),
        span(DATA, (12, 50), (30, 50)),
        span(FORWARD, (50, 51), (50, 60)),
    ]
    found = time_budget(made(spans, [(10, 60)]))

    assert row(found, DATA)["data_wait_ns"] == 20
    assert row(found, FORWARD)["busy_ns"] == pytest.approx(17.99 + 8.99)
    assert_adds_up(found)


def test_data_that_was_found_to_enqueue_work_proves_no_idling() -> None:
    spans = [
        span(FORWARD, (10, 12), (10, 30)),
        span(DATA, (12, 14), (30, 33)),  # a copy of 3 ms
        span(FORWARD, (14, 15), (33, 34)),
        span(DATA, (15, 50), (34, 50)),
    ]

    assert row(time_budget(made(spans, [(10, 60)])), DATA)["data_wait_ns"] == 0


def _logging(times: int, blocked: bool) -> Run:
    """Phase "log" is passed `times` times with a backlog, and found empty; then once without."""
    spans, at = [], 0
    for _ in range(times):
        spans += [
            span(FORWARD, (at, at + 1), (at, at + 9)),
            span(LOG, (at + 1, at + 2), (at + 9,) * 2),
        ]
        at += 9
    spans += [
        span(FORWARD, (at, at + 1), (at, at + 9)),
        span(LOG, (at + 20, at + 27), (at + 20, at + 27)),
    ]
    waits = [(at + 1, at + 9)] if blocked else []
    return made(spans, [(0, at + 30)], waits)


def test_a_stretch_that_was_found_empty_proves_idling() -> None:
    late, blocked = time_budget(_logging(5, blocked=False)), time_budget(_logging(5, blocked=True))

    # Up to the end event, which may itself be late by what it takes.
    assert row(late, LOG)["host_wait_ns"] == 7
    assert row(late, LOG)["sync_wait_ns"] == 0
    # The host had waited, and so had nothing enqueued ahead.
    assert row(blocked, LOG)["sync_wait_ns"] == 7
    assert_adds_up(late)
    assert_adds_up(blocked)


def test_four_times_empty_are_not_enough() -> None:
    assert row(time_budget(_logging(4, blocked=False)), LOG)["unknown_ns"] == 7


@pytest.mark.parametrize(
    ("kind", "busy_ms"),
    [
        # The call itself may cost 20 us.
        (SyncKind.ITEM, 21 - 0.01 - 0.02),
        (SyncKind.H2D_PAGEABLE, 21 - 0.01 - 0.02),
        # The wait need not be for the stream.
        (SyncKind.OTHER, 0),
        (SyncKind.EVENT_SYNCHRONIZE, 0),
    ],
)
def test_while_the_host_waits_for_it_the_device_is_busy(kind: SyncKind, busy_ms: float) -> None:
    spans = [span(FORWARD, (10, 50), (10, 50))]
    forward = row(time_budget(made(spans, [(10, 50)], waits=[(20, 41)], kind=kind)), FORWARD)

    assert forward["busy_ns"] == pytest.approx(busy_ms)
    assert forward["blocked_ns"] == 21


def test_a_wait_that_ends_before_the_stream_is_empty_proves_nothing() -> None:
    # The end of what was enqueued before the copy is passed 9 ms after it, as by a copy with
    # `non_blocking` that only fills a staging buffer.
    spans = [span(FORWARD, (10, 20), (10, 50)), span(LOG, (42, 60), (50, 60))]
    waits = [(20, 41)]
    found = made(spans, [(10, 70)], waits=waits, kind=SyncKind.H2D_PAGEABLE)

    assert not (analysis.of(found).correlation_points.site >= 0).any()
    assert row(time_budget(found), FORWARD)["busy_ns"] == pytest.approx(40 - 10 - 0.01)


def test_a_step_that_was_not_timed_on_the_device_has_no_device_side() -> None:
    spans = [span(FORWARD, (10, 12), (10, 30)), span(FORWARD, (50, 60), step=1)]
    found = time_budget(made(spans, [(10, 40), (50, 70)]))

    assert found.is_timed.tolist() == [True, True, False, False]
    assert {row(found, FORWARD, 1)[name] for name in DEVICE_COLUMNS} == {-1}


# --- a wait that moves ---


def test_a_wait_that_is_taken_out_comes_back_under_its_next_name() -> None:
    forward = (Launch(1 * MS, 20 * MS),)
    metrics, logging = (Launch(10_000, 2_000),), (Launch(10_000, 2_000),)
    first, second = (Sync(phase, 0, True, 15_000, 3_000, phase) for phase in (1, 2))
    program = Made((forward, metrics, logging), (first, second), (0,) * STEPS)

    def totals(one: Ran) -> dict[str, int]:
        found = time_budget(one.run)
        assert_adds_up(found)
        blocked_ns = {
            name: int(found.entries["blocked_ns"][found.entries["path"] == path].sum()) // STEPS
            for path, name in enumerate(one.run.paths)
        }
        return blocked_ns | {"step": int(wall_ns(found).sum()) // STEPS}

    with attached_cuda() as cuda:
        before = totals(ran(program, cuda))
    with attached_cuda() as cuda:
        after = totals(ran(program.without(first.site), cuda))

    assert before["phase1"] > 19.9 * MS
    assert before["phase2"] < 0.1 * MS
    assert after["phase1"] == 0
    # All of it but the host's own 60 us or so has moved, and the step is as long as it was.
    assert after["phase2"] - before["phase2"] == pytest.approx(before["phase1"], abs=0.1 * MS)
    assert after["step"] == pytest.approx(before["step"], abs=0.1 * MS)


# --- programs at random ---


def assert_true(one: Ran) -> None:
    """Sums and blocked times are exact; what is said to be busy or idle was, for so long."""
    found = time_budget(one.run)
    assert_adds_up(found)
    assert found.is_timed.all()
    assert int(found.entries["blocked_ns"].sum()) == sum(one.waits_ns)
    begins_ns, ends_ns = np.array(one.kernels_ns, np.int64).T
    busy_ns = covered_before(begins_ns, ends_ns, found.steps["end_ns"]) - covered_before(
        begins_ns, ends_ns, found.steps["begin_ns"]
    )
    assert (np.array(sums(found, "busy_ns")) <= busy_ns).all()
    assert (np.array(sums(found, *DEVICE_COLUMNS[1:-1])) <= wall_ns(found) - busy_ns).all()


@pytest.mark.parametrize(
    "seed",
    [*range(6), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 16))],
)
def test_programs_at_random(seed: int) -> None:
    with attached_cuda() as cuda:
        assert_true(ran(draw(seed), cuda))


# --- the report ---


def _section(run: Run, width: int = 100) -> str:
    report = run.report(verbose=True, width=width, color=False)
    return "Time budget: " + report.split("Time budget: ")[1].split("\n\n")[0]


@pytest.mark.parametrize(
    ("environment", "which"),
    [
        ({"program_facts": {"other_streams": True, "ranks": 1}}, "another stream"),
        ({"program_facts": {"other_streams": False, "ranks": 2}}, "another rank"),
        ({}, "another stream or rank; this run can't tell"),
    ],
)
def test_what_another_stream_may_be_waited_for_is_not_called_busy(
    environment: dict[str, Any], which: str
) -> None:
    run = made([span(FORWARD, (10, 12), (10, 30))], [(10, 60)], waits=[(52, 56)])
    run.environment = environment
    section = _section(run)

    assert "| busy?  " in section.splitlines()[1]
    words = " ".join(section.split())
    assert f"busy or waiting. When the stream looks busy it may be waiting for {which}" in words


def test_the_report_shows_both_sides_and_that_they_add_up() -> None:
    spans = [
        span(FORWARD, (10, 12), (10, 30)),
        span(DATA, (12, 50), (30, 50)),
    ]

    assert (
        _section(made(spans, [(10, 60)], waits=[(52, 56)]))
        == """\
Time budget: ms per step, host side | device side
phase           computing  blocked  | busy  data wait  sync wait  host wait  unknown
--------------  ---------  -------  ------  ---------  ---------  ---------  -------
data               38.000    0.000   0.000     20.000      0.000      0.000    0.000
forward             2.000    0.000  17.990      0.000      0.000      0.000    2.010
--------------  ---------  -------  ------  ---------  ---------  ---------  -------
outside phases      6.000    4.000   3.970      0.000      0.000      0.000    6.030
step               46.000    4.000  21.960     20.000      0.000      0.000    8.040
Each side adds up to the step: 50.000 ms (mean of 1 step)
host: the phase's own time, either computing or blocked (waiting for the device)
device: what the stream did, by the phase that enqueued the work. Idle time is listed by cause where
events prove it. unknown: busy or idle, events cannot tell"""
    )


def test_the_report_says_what_is_not_known() -> None:
    unwatched = _section(made([span(FORWARD, (10, 12), (10, 30))], [(10, 40)]))
    untimed = _section(made([span(FORWARD, (10, 12))], [(10, 40)], waits=[(10, 11)]))

    (forward,) = (line.split() for line in unwatched.splitlines() if line.startswith("forward"))
    assert forward == ["forward", "2.000?", "-", "17.990", "0.000", "0.000", "0.000", "2.010"]
    assert "?: computing and blocked together, because syncs were not watched" in unwatched
    (forward,) = (line.split() for line in untimed.splitlines() if line.startswith("forward"))
    assert forward == ["forward", "1.000", "1.000"]
    assert untimed.startswith("Time budget: ms per step, host side; the device was not timed\n")
    assert "They add up to the step: 30.000 ms" in untimed


def test_a_run_of_the_host_alone_has_no_time_budget() -> None:
    assert "TimeBudget" not in made([span(FORWARD, (10, 12))], [(10, 40)]).report(
        verbose=True, width=80
    )
