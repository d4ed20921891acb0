# SPDX-License-Identifier: Apache-2.0
"""A finding: a piece of advice that guides give, and what it is worth in one run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pyinstrument_gpu.analysis.savings import Saving, Savings


class Whole(enum.Enum):
    """What a finding is a share of."""

    STEP = "step"
    ELAPSED = "elapsed time"
    """The time from the begin of the first step on, with all that lies outside of steps."""


@dataclass(frozen=True)
class Worth:
    """What a change would save per step, an interval. `whole_ns` is per step too."""

    low_ns: float
    high_ns: float
    whole_ns: float
    whole: Whole = Whole.STEP

    @property
    def high_share(self) -> float:
        return self.high_ns / self.whole_ns if self.whole_ns else 0.0


@dataclass(frozen=True)
class Finding:
    """What one piece of advice is worth in a run.

    Attributes:
        advice: what guides say to do.
        promised: what they say it saves, as they write it; None where they give no number.
        worth: what it would save here; None where that can't be told.
        evidence: what in this run says so: calls, times and lines. Where the worth can't be told,
            the reason why.
        edit: how to do it; empty where the advice says all.
    """

    advice: str
    promised: str | None
    worth: Worth | None
    evidence: str
    edit: str = ""


def worth_of(saving: Saving, found: Savings) -> Worth:
    """What the savings of the run say of a change."""
    whole = Whole.STEP if saving.is_inside else Whole.ELAPSED
    return Worth(saving.low_ns, saving.high_ns, found.whole_ns(saving), whole)
