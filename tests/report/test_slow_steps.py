# SPDX-License-Identifier: Apache-2.0
"""What a report says of slow steps, of a run by a clock that the test sets."""

import json
from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.analysis import excess
from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.cause import Cause, Precedence
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.comparison import comparison_report
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from pyinstrument_gpu.report.slow_steps import SlowSteps, slow_findings, slow_steps
from pyinstrument_gpu.watch.slow_steps import SlowStepSums
from tests.helpers.clock import fake_clock

MS = 1_000_000


def trained(
    steps: int = 40,
    late_ms: int = 40,
    until: int | None = None,
    slow_ms: int = 25,
    has_rare: bool = True,
) -> Run:
    """Steps of 10 ms: the 12th also evaluates, the 20th writes a log, the 30th takes longer in its
    forward pass, and the 35th waits for its batch."""

    def phase(advance: Callable[[int], None], name: str, time_ms: int) -> None:
        with pig.gpu_phase(name):
            advance(time_ms * MS)

    recording = pig.record()
    del recording.watchers[
        "slow_step_causes"
    ]  # the time that the thread runs is none of that clock
    with fake_clock() as advance, recording:
        for step in range(steps):
            with pig.gpu_step():
                phase(advance, "data", 1 + late_ms if step == 35 else 1)
                phase(advance, "forward", slow_ms if step == 30 else 5)
                advance(4 * MS)
                if step == 12 and has_rare:
                    phase(advance, "validate", 100)
                    advance(10 * MS)
                    with pig.gpu_phase("validate"):
                        phase(advance, "metrics", 190)
                if step == 20 and has_rare:
                    with pig.gpu_phase("write log"):
                        phase(advance, "flush", 30)
            if step == until:
                break
    return recording.run


@pytest.fixture(scope="module")
def run() -> Run:
    return trained()


def section_of(run: Run) -> SlowSteps:
    found = slow_steps(run)
    assert found is not None
    return found


def test_each_slow_step_has_its_causes_and_the_rest(run: Run) -> None:
    found = section_of(run)
    assert (found.count, found.compared, found.excess_ns) == (4, 40, 390 * MS)
    told = {
        one.step: ([(part.cause, part.time_ns, part.note) for part in one.parts], one.where)
        for one in found.worst
    }
    assert told == {
        12: ([("evaluation", 300 * MS, None)], "validate/metrics"),
        20: ([("rare_phase", 30 * MS, "write log/flush")], "write log/flush"),
        30: ([], "forward"),
        35: ([("late_batch", 40 * MS, None)], "data"),
    }
    assert [one.unexplained_ns for one in found.worst] == [0, 0, 0, 20 * MS]
    for one in found.worst:
        assert sum(part.time_ns for part in one.parts) + one.unexplained_ns == one.excess_ns


def test_the_causes_of_the_run_add_up(run: Run) -> None:
    found = section_of(run)
    assert [(one.cause, one.steps, one.time_ns // MS, one.where) for one in found.causes] == [
        ("evaluation", 1, 300, "validate/metrics"),
        ("late_batch", 1, 40, "data"),
        ("rare_phase", 1, 30, "write log/flush"),
        ("unexplained", 1, 20, "forward"),
    ]
    assert sum(one.time_ns for one in found.causes) == found.excess_ns
    assert found.elapsed_ns == 790 * MS
    assert sum(one.share for one in found.causes) == pytest.approx(390 / 790)


def test_reports_have_a_line_a_table_and_json(run: Run) -> None:
    short, full = run.report(width=120), run.report(verbose=True, width=120)
    assert "Slow steps: 4 of 40, 49% of the time: 300 ms evaluation, 40.0 ms late batches" in short
    assert (
        "Slow steps: 4 of 40 took 390 ms more than others of their kind (49% of the time)" in full
    )
    assert (
        "Step 12 took 310 ms, 300 ms more than others of its kind, in validate/metrics: evaluation "
        "300 ms" in full
    )
    printed = json.loads(json_text(document_of(run), None))
    assert printed["slow_steps"]["causes"][0]["cause"] == "evaluation"
    assert printed["slow_steps"]["worst"][0]["parts"][0]["time_ns"] == 300 * MS


def test_a_large_time_that_nothing_explains_is_in_the_short_report() -> None:
    run = trained(slow_ms=10_005)
    assert "% of the time: 10.0 s unexplained" in run.report(width=120)


def test_steps_that_were_not_read_are_told_from_unexplained_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unread = Cause(
        "waits",
        "waiting for a processor",
        "",
        Precedence.PAUSE,
        known=np.arange(20),
        is_essential=True,
    )
    run = trained(slow_ms=10_005)
    monkeypatch.setattr(
        excess, "aspects", lambda: (*aspects(), SimpleNamespace(causes=lambda run: [unread]))
    )
    assert [(one.cause, one.steps) for one in section_of(run).causes[:1]] == [("not_looked_at", 1)]
    assert "% of the time: 10.0 s no cause recorded" in run.report(width=120)
    said = run.report(step=30, width=120)
    assert "in forward: no cause recorded 10.0 s" in said
    assert "Causes not recorded in this step: waiting for a processor" in said
    assert "Causes not recorded" not in run.report(step=35)  # its cause is known
    assert SlowStepSums().look(run).causes[30] == "no cause recorded"


def test_the_report_of_a_step_says_why_it_was_slow(run: Run) -> None:
    why = "20.0 ms more than others of its kind, in forward: unexplained 20.0 ms"
    assert f"Step 30 took 30.0 ms, {why}" in run.report(step=30, width=120)
    assert "more than others of its kind" not in run.report(step=31)


def test_what_a_remedy_saves_is_doubted_where_it_may_move(run: Run) -> None:
    found = {one.about: one for one in slow_findings(run)}
    assert {about: one.kind for about, one in found.items()} == {"evaluation": "doubt"}
    evaluation = asdict(found["evaluation"])
    assert (evaluation["low_ns"], evaluation["high_ns"]) == (0, 300 * MS / 40)
    assert (
        "it made 1 step of 40 slower, by 300 ms in all, mostly in validate/metrics"
        in evaluation.values()
    )


def test_a_run_without_slow_steps_has_no_section() -> None:
    run = trained(steps=12)
    assert slow_steps(run) is None
    assert "Slow steps" not in run.report(verbose=True)


def test_a_watch_counts_each_slow_step_once() -> None:
    sums = SlowStepSums()
    whole = trained()
    for until, count, seconds in ((15, 1, 0.3), (25, 2, 0.33), (25, 2, 0.33), (None, 4, 0.39)):
        run = trained(until=until)
        run.environment["run_id"] = whole.environment["run_id"]
        seen = sums.look(run)
        assert (seen.count, sum(seen.excess_ns.values()) / 1e9) == (count, seconds)
    assert seen.last is not None
    assert seen.words == (
        "Step 35 took 50.0 ms, 40.0 ms more than others of its kind, in data: late batches 40.0 ms"
    )
    assert seen.causes == {
        12: "evaluation",
        20: "rare phases",
        30: "unexplained",
        35: "late batches",
    }
    assert SlowStepSums().look(whole).count == 4


def test_a_difference_that_is_a_cause_is_named() -> None:
    found = compare([trained()], [trained(late_ms=240)])
    assert [(one.cause, one.change_ns) for one in found.causes if one.change_ns] == [
        ("late batches", 200 * MS / found.steps)
    ]
    said = comparison_report(found).replace("\n", " ")
    assert "In slow steps, late batches took 1.6" in said
    assert "(which may be chance)" in said


def test_a_comparison_says_what_went_away() -> None:
    slow, quiet = trained(), trained(late_ms=0, slow_ms=5, has_rare=False)
    gone = compare([slow], [quiet])
    assert gone.after_slow_ns == 0 < gone.before_slow_ns
    assert {one.cause: one.after_ns for one in gone.causes}["late batches"] == 0
    said = comparison_report(gone).replace("\n", " ")
    assert "No step was slow after. Before, slow steps took" in said
    back = comparison_report(compare([quiet], [slow])).replace("\n", " ")
    assert "No step was slow before. After, slow steps took" in back
