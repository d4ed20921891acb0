# SPDX-License-Identifier: Apache-2.0
"""What a step takes where nothing disturbs it, and what is said by that under CPU contention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.rules.case import Case
from pyinstrument_gpu.analysis.undisturbed import MIN_STEPS, OUTSIDE
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.document import document_of
from tests.helpers.timed_runs import MS, made_run, with_waits

_STEPS = 40
_QUIET = 6
"""Steps that nothing disturbs, more than a tenth."""


def contended_run(steps: int = _STEPS, busy: float = 0.8, workers: int | None = None) -> Run:
    """Steps of 10 ms: 6 of data, 3 of backward and 1 of neither. In most of them backward takes
    100 ms more, as it waits for its threads."""
    more_ns = np.where(np.arange(steps) % (steps // _QUIET) == 0, 0, 100 * MS)
    steps_ns: NDArray[np.int64] = 10 * MS + more_ns
    phases = {"data": 6 * MS / steps_ns, "backward": (3 * MS + more_ns) / steps_ns}
    facts: dict[str, Any] = {} if workers is None else {KEY: {"loader_workers": workers}}
    return with_waits(made_run(steps_ns, phases, gpus=[], **facts), busy)


def test_each_part_counts_with_its_fastest_tenth() -> None:
    found = analysis.of(contended_run()).undisturbed
    assert found is not None
    assert found.by_path == pytest.approx({0: 6 * MS, 1: 3 * MS, OUTSIDE: MS}, abs=10)
    assert found.step_ns == pytest.approx(10 * MS, abs=30)


def test_the_verdict_names_the_largest_part_of_an_undisturbed_step() -> None:
    document = document_of(contended_run())
    assert document.verdict.startswith(
        "A step takes 92.5 ms, and 10.0 ms where nothing "
        "disturbs it, of which the host spends 60% in data"
    )
    # Without contention it is the slow steps that matter.
    quiet = document_of(contended_run(busy=0.0))
    assert "where nothing disturbs it" not in quiet.verdict
    assert "in backward" in quiet.verdict


def test_rules_price_by_what_is_undisturbed() -> None:
    run = contended_run()
    case = Case(run, analysis.of(run))
    assert case.step_ns == pytest.approx(10 * MS, abs=30)
    assert case.computing_ns(1) == pytest.approx(3 * MS, abs=10)


def test_it_is_unknown_where_steps_are_few_or_hardly_longer() -> None:
    assert analysis.of(contended_run(steps=MIN_STEPS - 2)).undisturbed is None
    assert analysis.of(contended_run(busy=0.0)).undisturbed is None
    equal = with_waits(made_run([10 * MS] * _STEPS, gpus=[]), 0.8)
    assert analysis.of(equal).undisturbed is None


def test_a_wait_for_workers_counts_as_it_is() -> None:
    """A batch that is there at once says nothing of those that come late."""
    steps_ns = np.full(_STEPS, 110 * MS)
    is_late = np.arange(_STEPS) % 2 == 0
    data_ns = np.where(is_late, 60 * MS, MS)
    backward_ns = np.where(np.arange(_STEPS) < _QUIET, 3 * MS, 40 * MS)
    phases = {"data": data_ns / steps_ns, "backward": backward_ns / steps_ns}
    for workers, data_is_ns in ((0, MS), (2, 30.5 * MS)):
        facts: dict[str, Any] = {KEY: {"loader_workers": workers}}
        run = with_waits(made_run(steps_ns, phases, gpus=[], **facts), 0.8)
        found = analysis.of(run).undisturbed
        assert found is not None
        assert found.by_path[0] == pytest.approx(data_is_ns, abs=10)
