# SPDX-License-Identifier: Apache-2.0
"""The numbers of the report as JSON: those of the tables, and null for what is not known."""

import json
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.model.device_timing_summary import DeviceTimingSummary
from pyinstrument_gpu.model.schema import METRIC_DTYPE
from pyinstrument_gpu.report.facts import report_facts
from pyinstrument_gpu.run import Run
from tests.helpers.device_program import attached_cuda
from tests.helpers.made_runs import run_of
from tests.helpers.sync_program import Launch, Made, Sync, ran

MS = 1_000_000


def program() -> Run:
    """Two phases on the device, of which the first is read at once, and a wait for the loader."""
    made = Made(
        phases=((Launch(10_000, 5 * MS),), (Launch(20 * MS, 2_000),)),
        syncs=(Sync(0, 0, False, 15_000, 3_000, 0),),
        loader_ns=(MS,) * 50,
    )
    with attached_cuda() as cuda:
        run = ran(made, cuda).run
    run.environment["overhead"] = {"phase_ns": 50.0, "step_ns": 200.0}
    run.device_timing = DeviceTimingSummary(1, 200, 300_000)
    return run


def facts_of(run: Run, step: int | None = None) -> Any:
    """As a reader of the JSON has them; with a number that JSON has not, writing them fails."""
    return json.loads(json.dumps(report_facts(run, step), allow_nan=False))


def cells(report: str, title: str, name: str) -> list[str]:
    """The cells of the row of that name in the table of that title."""
    (row,) = (
        line.removeprefix(name).split()
        for line in report.split(title)[1].split("\n\n")[0].splitlines()
        if line.startswith(f"{name} ")
    )
    return row


def ms(*values_ns: float | None) -> list[str]:
    return ["-" if value is None else f"{value / MS:.3f}" for value in values_ns]


def phase_of(facts: Any, path: str, scope: str = "step") -> Any:
    (phase,) = (p for p in facts["phases"] if (p["path"], p["scope"]) == (path, scope))
    return phase


def test_values_are_those_of_the_tables() -> None:
    run = program()
    report, facts = run.report(width=120, color=False), facts_of(run)

    phase = phase_of(facts, "phase0")
    step = phase["per_step"]
    names = ("host_ns", "host_p50_ns", "host_p95_ns", "self_ns", "stream_ns", "blocked_ns")
    row = cells(report, "Where the step goes", "phase0")
    assert row[:7] == [str(phase["calls"]), *ms(*(step[name] for name in names))]
    steps = facts["steps"]
    row = cells(report, "Where the step goes", "step")
    assert row[:4] == [
        str(steps["count"]),
        *ms(steps["mean_ns"], steps["p50_ns"], steps["p95_ns"]),
    ]
    assert steps["phases_ns"] + steps["unattributed_ns"] == steps["total_ns"]

    row = cells(report, "On the device", "phase0")
    stream, ahead = phase["stream"], phase["run_ahead"]
    assert row == [
        str(stream["count"]),
        *ms(phase["host"]["mean_ns"], stream["mean_ns"], stream["p50_ns"], stream["p95_ns"]),
        *ms(ahead["p50_ns"], ahead["p95_ns"]),
        phase["bottleneck"],
    ]

    entry = facts["ledger"]["per_step"][-1]
    columns = ("computing_ns", "blocked_ns", "busy_ns", "data_wait_ns", "host_blocked_ns")
    row = cells(report, "Ledger: ", entry["path"])
    assert row[:5] == ms(*(entry[column] for column in columns))
    total = facts["ledger"]["total_per_step"]
    assert cells(report, "Ledger: ", "step")[:5] == ms(*(total[column] for column in columns))

    (saving,) = (one for one in facts["savings"]["per_step"] if one["taken_out"] == "sync")
    time, low, high, at_most = ms(
        *(saving[name] for name in ("time_ns", "low_ns", "high_ns", "at_most_ns"))
    )
    row = cells(report, "What a change could save", saving["about"])
    assert row[:6] == [f"{saving['calls']:.2f}", time, low, "?", high, at_most]
    assert not saving["is_told"]
    assert all(one["about"] in report and one["edit"] in report for one in facts["advice"])
    assert facts["advice"]

    (site,) = facts["syncs"]["sites"]
    row = cells(report, "Syncs: ", f"{site['file']}:{site['line']}")
    assert row[:3] == [site["what"], str(site["count"]), f"{site['count_per_step']:.2f}"]
    assert row[3:4] == ms(site["blocked_ns_per_step"])

    recorder = facts["recorder"]
    assert f"{recorder['phases_per_step']:.1f} phases per step" in report
    assert f"together {100 * recorder['share_of_step']:.2g}% of the step" in report
    assert recorder["event_ns"] == 1500.0


def test_what_is_not_known_is_null() -> None:
    facts = facts_of(run_of([]))

    steps = facts["steps"]
    assert steps["count"] == 0
    for name in ("mean_ns", "p50_ns", "p95_ns", "steps_per_second", "samples_per_second"):
        assert steps[name] is None
    for name in ("ledger", "savings", "syncs", "device_timed_every_steps", "open_step"):
        assert facts[name] is None
    assert set(facts["environment"].values()) == {None}
    assert set(facts["recorder"].values()) == {None}
    assert facts_of(Run.empty("it was off"))["notes"] == ["it was off"]


def test_times_of_a_phase_that_are_not_known_are_null() -> None:
    run = run_of([(0, 0, -1, 0, 0, -1, -1, 5, 25, -1, -1, -1, 0)], duration_ns=100)
    phase = phase_of(facts_of(run), "forward", "outside")

    assert (phase["calls"], phase["host"]["total_ns"]) == (1, 20)
    for name in ("self", "stream", "blocked", "per_step", "run_ahead", "bottleneck"):
        assert phase[name] is None


def test_values_that_json_does_not_have_are_null() -> None:
    rows = [(1, 0, 0, 0, 2.0), (2, 1, 0, 0, np.nan), (2, -1, 0, 1, np.inf)]
    metrics = np.array(rows, METRIC_DTYPE)
    loss, scale = facts_of(run_of([], metric_names=("loss", "scale"), metrics=metrics))["metrics"]

    assert loss["last"] == {"value": None, "step": 1}
    assert loss["min"] == loss["max"] == {"value": 2.0, "step": 0}
    assert scale == {
        "name": "scale",
        "last": {"value": None, "step": None},
        "min": None,
        "max": None,
    }


def test_one_step() -> None:
    run = program()
    facts, report = facts_of(run, 3), run.report(step=3, color=False)

    assert facts["step"] == 3
    assert facts["is_complete"]
    assert facts["is_timed_on_device"]
    first = facts["phases"][0]
    (row,) = (line.split() for line in report.splitlines() if line.startswith(f"{first['path']} "))
    seconds = [f"{first[name] / 1e9:.6f}" for name in ("host_ns", "stream_ns")]
    assert [row[1], row[3]] == seconds
    assert facts["phases_ns"] + facts["unattributed_ns"] == facts["total_ns"]


def test_there_is_no_such_step() -> None:
    with pytest.raises(KeyError, match="no step 1000"):
        report_facts(program(), 1000)
