# SPDX-License-Identifier: Apache-2.0
"""Which steps lack spans, on runs of which some were taken."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.run import Run
from tests.helpers.made_script import Script

STEPS = 20
FORWARD, BACKWARD, LOG = range(3)


def _run(is_lost: Callable[[Any], bool], **parts: Any) -> Run:
    """20 steps with two forwards, a backward, and in every fifth of them a log; and in between a
    phase of another thread. Some of it is lost."""
    script = Script()
    for step in range(STEPS):
        with script.step():
            for name in ("forward", "forward", "backward", *(["log"] if step % 5 == 0 else [])):
                script.leaf(name, 100)
                script.work(100)
            begin_ns = 1_000 * step + 100
            script.span(("log",), begin_ns, begin_ns + 100, thread=1)
        script.now_ns = 1_000 * (step + 1)
    whole = script.run()
    kept = ~np.array([is_lost(span) for span in whole.spans])
    own_ns = whole.span_self_ns[kept]
    return script.run(
        spans=whole.spans[kept], span_self_ns=own_ns, statistics=whole.statistics, **parts
    )


def _in_row(first: int, last: int) -> Callable[[Any], bool]:
    """What was lost at once: from the second forward of one step to the first of another."""
    return lambda span: (
        1_000 * first + 200 <= span["host_begin_ns"] < 1_000 * last + 200 and span["thread"] == 0
    )


@pytest.mark.parametrize(
    ("first", "last", "kept"), [(3, 6, range(7, 20)), (12, 15, range(12)), (0, 3, range(4, 20))]
)
def test_the_steps_that_lack_spans_are_found(first: int, last: int, kept: range) -> None:
    run = _run(_in_row(first, last))
    losses = analysis.of(run).span_losses

    assert losses.are_located
    assert np.flatnonzero(losses.lacking).tolist() == [*range(first, last + 1)]
    assert analysis.of(run).kept_steps["index"].tolist() == [*kept]
    assert analysis.of(run).step_quantiles.steps == len(kept)


def test_a_single_span_is_missing_in_one_step() -> None:
    run = _run(lambda span: span["step"] == 4 and span["path"] == BACKWARD)

    assert np.flatnonzero(analysis.of(run).span_losses.lacking).tolist() == [4]
    assert analysis.of(run).kept_steps["index"].tolist() == [*range(5, 20)]


def test_if_most_is_lost_nobody_knows_what_is_usual() -> None:
    assert not analysis.of(_run(_in_row(0, 19))).span_losses.are_located


@pytest.mark.parametrize("of_other_threads", [False, True])
def test_nothing_is_lost_of_the_steps(of_other_threads: bool) -> None:
    losses = analysis.of(_run(lambda span: of_other_threads and span["thread"] == 1)).span_losses

    assert losses.spans == of_other_threads * STEPS
    assert losses.are_located and not losses.lacking.any()


def test_losses_of_a_rare_phase_alone_can_be_of_any_step() -> None:
    run = _run(lambda span: span["path"] == LOG and span["step"] == 5 and span["thread"] == 0)

    assert not analysis.of(run).span_losses.are_located
    assert "1 span of these steps may be missing" in run.report(verbose=True)


def test_beside_losses_for_age_it_is_not_known_which_they_are() -> None:
    run = _run(_in_row(3, 6), dropped={"span_history": 2, "ring_full": 10})

    assert not analysis.of(run).span_losses.are_located


def test_the_report_says_how_many_steps_lack_nothing() -> None:
    report = _run(_in_row(3, 6), dropped={"ring_full": 10}).report(verbose=True, width=100)

    assert (
        "p50 and p95 cover the 13 of 20 steps in a row that lack no spans, the most there are"
        in report
    )
    assert "may be missing" not in report
