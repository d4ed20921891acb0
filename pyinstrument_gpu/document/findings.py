# SPDX-License-Identifier: Apache-2.0
"""The findings that matter: what one should know of a run first, and what to do about it; and what
else guides advise."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, EDIT_SHARE, TIMELINE, Finding
from pyinstrument_gpu.analysis.rules import findings as guides_of
from pyinstrument_gpu.analysis.rules import is_nothing_worth_an_edit
from pyinstrument_gpu.analysis.rules.case import Guidance
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run


def findings(run: Run, file: str | None) -> tuple[Finding, ...]:
    """What went wrong, then what is worth an edit for certain, then what may be."""
    failures = (one for aspect in aspects() for one in aspect.failures(run))
    found = [*failures, *_worth_an_edit(run)]
    if file is not None:
        named = f" {shlex.quote(file)}"
        found = [replace(one, look=one.look and one.look.replace(" RUN", named)) for one in found]
    return tuple(sorted(found, key=lambda one: one.kind != "failure" and 2 - one.is_certain))


def _worth_an_edit(run: Run) -> Iterator[Finding]:
    """Advice and doubts in the order of the analysis, then what guides advise. A piece of their
    advice with the very interval of another finding is about the same time, and not repeated."""
    about = analysis.of(run)
    given = about.advice if about.knows_waits else []
    given = [*given, *(one for one in about.doubts if about.knows_waits or one.low_ns is None)]
    yield from given
    intervals = {(one.low_ns, one.high_ns, one.of) for one in given}
    for guide in guides_of(run):
        worth = guide.worth
        if worth is None or (worth.low_ns, worth.high_ns, worth.of) in intervals:
            continue
        if worth.low_ns >= EDIT_SHARE * worth.of_ns or worth.high_share >= DOUBT_SHARE:
            yield Finding(
                kind="guide",
                about=guide.advice,
                low_ns=worth.low_ns,
                high_ns=worth.high_ns,
                likely_ns=None,
                of_ns=worth.of_ns,
                of=worth.of,
                promised=guide.promised,
                evidence=guide.evidence,
                edit=guide.edit,
                look=TIMELINE,
            )


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
    found = guides_of(run)
    nothing = is_nothing_worth_an_edit(run, found)
    if not found and not nothing:
        return None
    return Guides(tuple(one for one in found if one.advice not in told), nothing)
