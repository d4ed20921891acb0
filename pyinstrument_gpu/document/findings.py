# SPDX-License-Identifier: Apache-2.0
"""The findings that matter: what one should know of a run first, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, Advice
from pyinstrument_gpu.analysis.change import Change
from pyinstrument_gpu.analysis.rules import EDIT_SHARE
from pyinstrument_gpu.analysis.rules import findings as guides_of
from pyinstrument_gpu.analysis.savings import Saving, Savings
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.run import Run


@dataclass(frozen=True)
class Finding:
    """One thing that matters.

    Attributes:
        kind: "failure" (something went wrong), "advice" (this run proves that the edit is worth
            it), "doubt" (it may be: this run can't tell) or "guide" (what guides advise, with what
            it is worth here).
        about: what it is about.
        low_ns, high_ns: what a change would save per step; unknown where nothing says it.
        likely_ns: the likeliest in between, where the run tells.
        of_ns: the time per step that this is a part of.
        of: that in words: "step", or "elapsed time" with all between steps.
        promised: what guides say that it saves, as they write it.
        evidence: this run's numbers that say so.
        edit: what to change, where `about` does not say it.
        look: a command that shows more.
        is_rare: more than half of the saving lies in at most one step of ten; unknown where the run
            does not tell what is likely.
    """

    kind: str
    about: str
    low_ns: float | None
    high_ns: float | None
    likely_ns: float | None
    of_ns: float | None
    of: str | None
    promised: str | None
    evidence: str
    edit: str | None
    look: str | None
    is_rare: bool | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it is worth an edit for certain."""
        least_ns = EDIT_SHARE * (self.of_ns or 0.0)
        return self.kind == "advice" or (self.kind == "guide" and (self.low_ns or 0.0) >= least_ns)


def findings(run: Run, file: str | None) -> tuple[Finding, ...]:
    """What went wrong, then what is worth an edit for certain, then what may be."""
    commands = _Commands(file)
    found = [*_failures(run, commands), *_worth_an_edit(run, commands)]
    return tuple(sorted(found, key=lambda one: one.kind != "failure" and 2 - one.is_certain))


class _Commands:
    """Commands that show more of a run."""

    _PROFILE = "pyinstrument-gpu run --modules --profile-steps 3 PROGRAM"

    def __init__(self, file: str | None) -> None:
        self.run = "RUN" if file is None else shlex.quote(file)
        self.timeline = f"pyinstrument-gpu export {self.run} -o trace.json"
        self._by_change = {
            Change.SYNC: self.timeline,
            Change.COPIES: self.timeline,
            Change.ALL_SYNCS: self.timeline,
            Change.DATA_WAIT: self.timeline,
            Change.LAUNCHES: self._PROFILE,
        }

    def of(self, advice: Advice) -> str:
        change = None if advice.saving is None else advice.saving.change
        return self._PROFILE if change is None else self._by_change[change]


def _failures(run: Run, commands: _Commands) -> Iterator[Finding]:
    for one in (failure for aspect in aspects() for failure in aspect.failures(run)):
        nothing = dict.fromkeys(("low_ns", "high_ns", "likely_ns", "of_ns", "of", "promised"))
        look = one.look.replace("RUN", commands.run)
        yield Finding(
            "failure", one.about, **nothing, evidence=one.evidence, edit=one.edit, look=look
        )


def _worth_an_edit(run: Run, commands: _Commands) -> Iterator[Finding]:
    """Advice and doubts in the order of the analysis, then what guides advise. A piece of their
    advice with the very interval of another finding is about the same time, and not repeated."""
    about = analysis.of(run)
    given = [("advice", one) for one in about.advice] if about.knows_waits else []
    given += [("doubt", one) for one in about.doubts if about.knows_waits or one.saving is None]
    intervals = set()
    for kind, one in given:
        found = _of_advice(kind, one, about.savings, commands)
        intervals.add((found.low_ns, found.high_ns, found.of))
        yield found
    for guide in guides_of(run):
        worth = guide.worth
        if worth is None or (worth.low_ns, worth.high_ns, worth.whole.value) in intervals:
            continue
        is_certain = worth.low_ns >= EDIT_SHARE * worth.whole_ns
        if is_certain or worth.high_share >= DOUBT_SHARE:
            yield Finding(
                kind="guide",
                about=guide.advice,
                low_ns=worth.low_ns,
                high_ns=worth.high_ns,
                likely_ns=None,
                of_ns=worth.whole_ns,
                of=worth.whole.value,
                promised=guide.promised,
                evidence=guide.evidence,
                edit=guide.edit or None,
                look=commands.timeline,
            )


def _of_advice(kind: str, one: Advice, savings: Savings, commands: _Commands) -> Finding:
    saving = one.saving
    is_inside = saving is not None and saving.is_inside
    is_rare = _is_rare(saving) if is_inside else None
    evidence = f"{one.reason}; most of it in at most one step of ten" if is_rare else one.reason
    return Finding(
        kind=kind,
        about=one.about,
        low_ns=None if saving is None else saving.low_ns,
        high_ns=None if saving is None else saving.high_ns,
        likely_ns=saving.likely_ns if saving is not None and saving.is_told else None,
        of_ns=None if saving is None else savings.whole_ns(saving),
        of=None if saving is None else "step" if is_inside else "elapsed time",
        promised=None,
        evidence=evidence,
        edit=one.edit,
        look=commands.of(one),
        is_rare=is_rare,
    )


def _is_rare(saving: Saving | None) -> bool | None:
    """Nine of ten steps that save less than half the mean save less than half of all."""
    if saving is None or not saving.is_told:
        return None
    return saving.likely_ns > 0 and saving.spread_ns[1] < saving.likely_ns / 2
