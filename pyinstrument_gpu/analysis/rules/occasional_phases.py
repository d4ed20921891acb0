# SPDX-License-Identifier: Apache-2.0
"""Evaluations, checkpoints and the like: their share of the elapsed time, and what half as often
would save."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Whole, Worth
from pyinstrument_gpu.analysis.rules.occasions import Occasions

MIN_OCCASIONS = 2
MIN_SHARE = 0.01
"""The least share of the elapsed time that other phases have to take to be named."""
_EVALUATE = "evaluate half as often"
_MAY_BE_ROLLOUTS = (
    "modules run without gradients, but in training mode, or without a loader and a loss, so "
    "training may need what they compute"
)


def occasional_phases(case: Case) -> Iterator[Finding]:
    timeline = case.timeline
    kinds = {
        _EVALUATE: timeline.evaluations(),
        "save checkpoints half as often": timeline.checkpoints(),
    }
    for name, occasions in timeline.others(MIN_SHARE).items():
        kinds[f'run "{name}" half as often'] = occasions
    for advice, occasions in kinds.items():
        if len(occasions) < MIN_OCCASIONS:
            continue
        if advice == _EVALUATE and timeline.may_be_rollouts():
            yield Finding(advice, None, None, _MAY_BE_ROLLOUTS)
        else:
            yield _finding(case, advice, occasions)


def _finding(case: Case, advice: str, occasions: Occasions) -> Finding:
    if lost := case.found.span_losses.spans:
        return Finding(advice, None, None, f"{lost:,} spans are missing from the history")
    if not occasions.are_known:
        return Finding(advice, None, None, "no read that the watch saw ends the device's work")
    elapsed_ns, steps = case.timeline.elapsed_ns, len(case.steps)
    low_ns, high_ns = int(occasions.low_ns.sum()), int(occasions.high_ns.sum())
    worth = Worth(low_ns / 2 / steps, high_ns / 2 / steps, elapsed_ns / steps, Whole.ELAPSED)
    each = " to ".join(dict.fromkeys(ms(time_ns / len(occasions)) for time_ns in (low_ns, high_ns)))
    return Finding(advice, None, worth, f"{len(occasions):,} times in {steps:,} steps, {each} each")
