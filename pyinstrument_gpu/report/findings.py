# SPDX-License-Identifier: Apache-2.0
"""The findings that matter: what one should know of a run first, and what to do about it; and what
else guides advise."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, EDIT_SHARE, TIMELINE, Finding, in_order
from pyinstrument_gpu.analysis.rules import findings as guides_of
from pyinstrument_gpu.analysis.rules import is_nothing_worth_an_edit
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import counted, printable, small_percent
from pyinstrument_gpu.report.slow_steps import slow_findings
from pyinstrument_gpu.report.trends import trend_findings


def findings(run: Run, file: str | None) -> tuple[Finding, ...]:
    """Return all that matters, in the order in which it does."""
    of_aspects = (one for aspect in aspects() for one in aspect.failures(run))
    # The times of a preview are not the program's, so nothing is worth what they say.
    found = [one for one in of_aspects if one.high_ns is None or not run.syncs.is_as_if]
    found += _worth_an_edit(run)
    if file is not None:
        named = f" {shlex.quote(file)}"
        found = [replace(one, look=one.look and one.look.replace(" RUN", named)) for one in found]
    return tuple(in_order(found))


def _worth_an_edit(run: Run) -> Iterator[Finding]:
    """Yield advice and doubts in the order of the analysis, then what guides advise. Such advice
    with the very interval of another finding is about the same time, and not repeated."""
    about = analysis.of(run)
    given = about.advice if about.knows_waits else []
    given = [*given, *(one for one in about.doubts if about.knows_waits or one.low_ns is None)]
    yield from trend_findings(run)
    yield from given
    yield from slow_findings(run)
    intervals = {(one.low_ns, one.high_ns, one.of) for one in given}
    for guide in guides_of(run):
        low_ns, share = guide.low_ns, guide.high_share
        if low_ns is None or share is None or (low_ns, guide.high_ns, guide.of) in intervals:
            continue
        if guide.is_certain or share >= DOUBT_SHARE:
            yield replace(guide, look=TIMELINE)


@dataclass(frozen=True)
class Guides:
    """Guides that apply to the run.

    Attributes:
        rows: what is not among the findings, the largest worth first.
        nothing_worth_an_edit: whether no saving and no advice reaches 1 % of the time.
    """

    rows: tuple[Finding, ...]
    nothing_worth_an_edit: bool


def guides(run: Run, told: Collection[str]) -> Guides | None:
    """Return the guides; `told` is the advice that is among the findings."""
    found = guides_of(run)
    nothing = is_nothing_worth_an_edit(run, found)
    if not found and not nothing:
        return None
    return Guides(tuple(one for one in found if one.about not in told), nothing)


NEGLIGIBLE_SHARE = 0.001
_MAX_FINDINGS = 5


def guides_parts(guides: Guides | None, findings: Sequence[Finding]) -> Iterator[Sentence]:
    """Yield what their advice is worth, the largest first, with the evidence unless it is worth
    nothing; then what this run can't tell."""
    if guides is None:
        return
    yield Sentence()
    yield Sentence("What guides advise, and what it is worth in this run", "title")
    told = [one for one in findings if one.kind == "guide"]
    known = [*told, *(one for one in guides.rows if one.high_ns is not None)]
    known.sort(key=lambda one: one.high_share or 0.0, reverse=True)
    for one in known[:_MAX_FINDINGS]:
        share = one.high_share or 0.0
        yield Sentence(printable(f"{_promise(one)}: {_worth(one)}"))
        if share >= NEGLIGIBLE_SHARE:
            yield Sentence(printable(f"   {one.evidence}"), "note")
        if one.edit is not None and share >= EDIT_SHARE:
            yield Sentence(printable(f"   {one.edit}"), "note")
    if len(known) > _MAX_FINDINGS:
        yield Sentence(f"... and {counted(len(known) - _MAX_FINDINGS, 'smaller one')}", "warn")
    untold = [f"{_promise(one)} ({one.evidence})" for one in guides.rows if one.high_ns is None]
    if untold:
        yield Sentence(printable(f"Not known from this run: {'; '.join(untold)}"))
    if guides.nothing_worth_an_edit:
        yield Sentence(
            f"Nothing here is worth an edit: no saving and no advice reaches {EDIT_SHARE:.0%}"
        )


def _promise(one: Finding) -> str:
    return one.about + (f" (guides say {one.promised})" if one.promised else "")


def _worth(one: Finding) -> str:
    low_ns, high_ns, of_ns = one.low_ns or 0.0, one.high_ns or 0.0, one.of_ns
    if not high_ns or not of_ns:
        return "nothing"
    low, high = (small_percent(time_ns, of_ns) for time_ns in (low_ns, high_ns))
    if low_ns < NEGLIGIBLE_SHARE * of_ns:
        share = f"at most {high}"
    else:
        share = high if low == high else f"{low} to {high}"
    return f"{share} of the {one.of}"
