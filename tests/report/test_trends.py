# SPDX-License-Identifier: Apache-2.0
"""The words for a step that changes over the run."""

import numpy as np
import pytest
from numpy.typing import ArrayLike

from pyinstrument_gpu.aspects.setup_calls.data import SetupCall, SetupCalls
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.findings import findings
from pyinstrument_gpu.report.trends import trend_findings
from tests.helpers.timed_runs import MS, made_run

_STEPS = 400
_LINES = [{"phase": "forward", "file": "/home/train.py", "line": 27}]


def run_of(more_ns: ArrayLike, in_phase: bool = True) -> Run:
    """A run of steps of 10 ms, 6 of them in forward, with so much more in it or after it."""
    steps_ns = 10 * MS + np.asarray(more_ns)
    forward_ns = 6 * MS + (np.asarray(more_ns) if in_phase else 0)
    phases = {"data": 1 * MS / steps_ns, "forward": forward_ns / steps_ns}
    return made_run(steps_ns, phases, phase_lines=_LINES, cwd="/home")


def test_a_growth_is_told_with_its_place_and_line() -> None:
    (found,) = trend_findings(run_of(0.05 * MS * np.arange(_STEPS)))
    assert (found.kind, found.about) == ("doubt", "growth of the step over the run")
    assert found.edit == (
        "see what grows in forward (first called at train.py:27): a step takes 12.9 ms in the "
        "first fifth of the run and 28.1 ms in the last, 50.0 us more each step"
    )
    assert found.evidence == (
        "a step takes 12.9 ms in the first fifth of the run and 28.1 ms in the last; 100% of the "
        "change is in forward"
    )
    assert found.high_share == pytest.approx(0.44, abs=0.01)


def test_the_time_outside_phases_has_the_phase_before_it() -> None:
    (found,) = trend_findings(run_of(0.05 * MS * np.arange(_STEPS), in_phase=False))
    assert found.edit is not None
    assert found.edit.startswith(
        "see what grows outside phases, after forward (first called at train.py:27): "
    )


@pytest.mark.parametrize(
    ("more_ns", "about", "edit"),
    [
        (
            0.05 * MS * np.arange(_STEPS)[::-1],
            "slow steps early in the run",
            "see what takes longer at first in forward (first called at train.py:27): a step takes "
            "27.1 ms in the first fifth of the run and 11.9 ms in the last",
        ),
        (
            np.where(np.arange(_STEPS) >= 150, 5 * MS, 0),
            "slowdown at step 150",
            "see what changes in forward (first called at train.py:27): a step takes 10.0 ms "
            "before step 150 and 15.0 ms from there on",
        ),
        (
            np.where(np.arange(_STEPS) < 150, 5 * MS, 0),
            "slow steps before step 150",
            "see what changes in forward (first called at train.py:27): a step takes 15.0 ms "
            "before step 150 and 10.0 ms from there on",
        ),
    ],
)
def test_each_shape_has_its_words(more_ns: ArrayLike, about: str, edit: str) -> None:
    (found,) = trend_findings(run_of(more_ns))
    assert (found.about, found.edit) == (about, edit)


def test_it_is_among_the_findings_and_in_the_default_report() -> None:
    run = run_of(0.05 * MS * np.arange(_STEPS))
    assert [one.about for one in findings(run, None)][:1] == ["growth of the step over the run"]
    report = run.report(width=100, color=False)
    assert len(report.splitlines()) <= 25
    assert "no more growth of the step over the run" in report
    assert "see what grows in forward (first called at train.py:27)" in report


def test_hooks_that_pile_up_are_named() -> None:
    run = run_of(0.05 * MS * np.arange(_STEPS))
    hooks = SetupCall(
        kind="hooks", call="register_forward_hook", file="/home/train.py", line=18, hooks=320
    )
    run.setup_calls = SetupCalls((hooks,))
    (found,) = trend_findings(run)
    adds = "register_forward_hook at train.py:18 adds one in each step, and 320 or more are there"
    assert found.edit is not None
    assert found.edit.startswith(f"remove hooks (handle.remove()), as {adds}")
    # Also where no trend is to be seen.
    even = run_of(np.zeros(_STEPS))
    even.setup_calls = SetupCalls((hooks,))
    (found,) = trend_findings(even)
    assert (found.kind, found.high_ns, found.evidence) == ("doubt", None, adds)


def test_a_run_without_a_trend_says_nothing() -> None:
    run = run_of(np.zeros(_STEPS))
    assert not [*trend_findings(run)]
    assert "the run" not in run.report(width=100, color=False)
