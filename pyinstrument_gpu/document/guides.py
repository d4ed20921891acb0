# SPDX-License-Identifier: Apache-2.0
"""The section on what guides tell everybody to do, and what that is worth in this run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyinstrument_gpu.analysis.rules import findings, is_nothing_worth_an_edit
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class Guidance:
    """A piece of advice that guides give.

    Attributes:
        advice: what they say to do.
        promised: what they say it saves, as they write it.
        low_ns, high_ns: what it would save here per step; unknown where that can't be told.
        of_ns: what that is a share of.
        of: that in words: "step", or "elapsed time" with all between steps.
        evidence: what in this run says so; where the worth can't be told, why not.
        edit: how to do it, where the advice does not say it all.
    """

    advice: str
    promised: str | None
    low_ns: float | None
    high_ns: float | None
    of_ns: float | None
    of: str | None
    evidence: str
    edit: str | None


@dataclass(frozen=True)
class Guides:
    """What applies to the run.

    Attributes:
        rows: what is not among the findings, the largest worth first.
        nothing_worth_an_edit: whether no saving and no advice reaches 1 % of the time.
    """

    rows: tuple[Guidance, ...]
    nothing_worth_an_edit: bool


def guides(run: Run, told: Collection[str]) -> Guides | None:
    """`told` is the advice that is among the findings."""
    found = findings(run)
    nothing = is_nothing_worth_an_edit(run, found)
    if not found and not nothing:
        return None
    return Guides(
        tuple(
            Guidance(
                advice=one.advice,
                promised=one.promised,
                low_ns=None if one.worth is None else one.worth.low_ns,
                high_ns=None if one.worth is None else one.worth.high_ns,
                of_ns=None if one.worth is None else one.worth.whole_ns,
                of=None if one.worth is None else one.worth.whole.value,
                evidence=one.evidence,
                edit=one.edit or None,
            )
            for one in found
            if one.advice not in told
        ),
        nothing,
    )
