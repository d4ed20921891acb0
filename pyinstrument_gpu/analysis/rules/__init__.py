# SPDX-License-Identifier: Apache-2.0
"""Rules: what guides tell everybody to do, and what each piece of advice is worth in one run.

A rule is a function of a `Case` that yields a few findings, or none where the advice does not apply
to the run. docs/savings.md has them all, with their premises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from pyinstrument_gpu import analysis, plugins
from pyinstrument_gpu.analysis.advice import EDIT_SHARE, MIN_STEPS, Finding
from pyinstrument_gpu.analysis.rules.case import Case
from pyinstrument_gpu.analysis.rules.loader import (
    fewer_workers,
    kept_workers,
    loader_workers,
    no_workers,
)
from pyinstrument_gpu.analysis.rules.modes import (
    anomaly_mode,
    autocast_on_cpu,
    double_precision,
    graph_of_backward,
    recomputation,
)
from pyinstrument_gpu.analysis.rules.waits import (
    blocking_copies,
    evaluation_copies,
    logging_steps,
    repeated_reads,
    small_tensors,
)
from pyinstrument_gpu.analysis.rules.work import (
    batch_size,
    fused_optimizer,
    occasional_phases,
    optimizer_host_time,
    padding,
    precision,
    too_many_threads,
)
from pyinstrument_gpu.core.run import Run

RULES: tuple[Callable[[Case], Iterable[Finding]], ...] = (
    repeated_reads,
    blocking_copies,
    small_tensors,
    evaluation_copies,
    logging_steps,
    occasional_phases,
    padding,
    optimizer_host_time,
    fused_optimizer,
    loader_workers,
    no_workers,
    fewer_workers,
    kept_workers,
    too_many_threads,
    anomaly_mode,
    graph_of_backward,
    double_precision,
    autocast_on_cpu,
    recomputation,
    batch_size,
    precision,
)

# As the other parts of an analysis, computed once.
_found: MutableMapping[Run, list[Finding]] = WeakKeyDictionary()


def findings(run: Run) -> list[Finding]:
    """Return what the rules find, the largest first, and then what this run can't tell."""
    if run not in _found:
        _found[run] = _findings(run)
    return _found[run]


def _findings(run: Run) -> list[Finding]:
    case = Case(run, analysis.of(run))
    if run.syncs.is_as_if or len(case.steps) < MIN_STEPS:
        return []
    found = [finding for rule in RULES for finding in rule(case)]
    for name, rule in plugins.load_all("rules", callable):
        try:
            found += rule(case)
        except Exception as error:
            plugins.leave_out(name, f"it raised {type(error).__name__}: {error}")
    certain = case.found.certain_share
    if certain < 1:
        found = [replace(one, low_ns=one.low_ns and certain * one.low_ns) for one in found]
    return sorted(
        found, key=lambda one: (one.high_share is not None, one.high_share or 0), reverse=True
    )


MOST_UNPRICED = 0.1
"""The share of the step that may be without a price where nothing is said to be worth an edit."""


def unpriced_share(run: Run) -> float:
    """Return the share of the step that the program computes itself, of which no saving and no
    advice says what it could save: of programs without a GPU. Beside one, savings look at the
    launches of each phase."""
    case = Case(run, analysis.of(run))
    if run.environment.get("gpus") != [] or not len(case.steps) or not case.step_ns:
        return 0.0
    return min(1.0, case.all_computing_ns / case.step_ns)


def is_nothing_worth_an_edit(run: Run, found: list[Finding]) -> bool:
    """Return whether all that savings and these findings say is worth less than `EDIT_SHARE`.

    Not where one of them can't tell, where something that may matter was not recorded, where the
    time that a step takes has no premise to rest on, or where more than a tenth of it has no price.
    """
    about = analysis.of(run)
    savings = about.savings
    if savings.steps < MIN_STEPS or not about.knows_waits or about.is_contended:
        return False
    if about.advice or about.doubts or about.trend is not None:
        return False
    if unpriced_share(run) > MOST_UNPRICED:
        return False
    if any(row.high_ns >= EDIT_SHARE * savings.whole_ns(row) > 0 for row in savings.rows):
        return False
    shares = [finding.high_share for finding in found]
    return all(share is not None and share < EDIT_SHARE for share in shares)
