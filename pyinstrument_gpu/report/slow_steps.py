# SPDX-License-Identifier: Apache-2.0
"""The section on slow steps: what they cost, and what made them slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import DOUBT_SHARE, EDIT_SHARE, Finding
from pyinstrument_gpu.analysis.excess import NOT_LOOKED_AT, Excess
from pyinstrument_gpu.analysis.slow_places import OUTSIDE, UNKNOWN
from pyinstrument_gpu.analysis.slow_sums import UNEXPLAINED
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import Unit, counted, duration, printable, small_percent

_MOST_ROWS = 6
_MOST_WORST = 10
_SHOWN_SHARE = 0.01
_UNEXPLAINED_SHARE = 0.1
"""Of the time: slow steps that take less are in the short report where a cause is known."""
_NAMED_SHARE = 0.05
"""What is less of the excess has no words in a line."""
_LOOK = "pyinstrument-gpu report -v RUN"


@dataclass(frozen=True)
class SlowPart:
    """The part of a step's excess that a cause explains.

    Attributes:
        cause: its name.
        words: the same in words.
        time_ns: of the excess.
        note: on what it was, such as which generation was collected.
    """

    cause: str
    words: str
    time_ns: int
    note: str | None


@dataclass(frozen=True)
class SlowStep:
    """A step that took longer than its kind by more than noise.

    Attributes:
        step: its index.
        took_ns: how long it took.
        typical_ns: the median of its kind.
        parts: what made it slow, the largest first. With `unexplained_ns` they add up to the
            difference.
        unexplained_ns: what no cause explains, though the step was looked at.
        where: the phase that took most more than usual; "outside phases"; unknown where its spans
            are no longer kept.
        not_looked_at: causes, in words, of which it is not known whether they were at work in it.
    """

    step: int
    took_ns: int
    typical_ns: int
    parts: tuple[SlowPart, ...]
    unexplained_ns: int
    where: str | None
    not_looked_at: tuple[str, ...]

    @property
    def excess_ns(self) -> int:
        return self.took_ns - self.typical_ns

    @property
    def is_explained(self) -> bool:
        """True if causes explain all of it."""
        return not self.unexplained_ns and all(one.cause != NOT_LOOKED_AT for one in self.parts)


@dataclass(frozen=True)
class SlowCause:
    """The cost of a cause.

    Attributes:
        cause: its name; "unexplained" for what none explains, "not_looked_at" for what is left of
            steps for which no cause was recorded.
        words: the same in words.
        steps: how many slow steps it has made slower.
        time_ns: by how much, together.
        share: of the elapsed time.
        where: the phase in which most of these steps were slow, by that time.
        remedy: what to do about it.
    """

    cause: str
    words: str
    steps: int
    time_ns: int
    share: float
    where: str | None
    remedy: str | None


@dataclass(frozen=True)
class SlowSteps:
    """The cost of slow steps.

    Attributes:
        count: how many were slow.
        compared: of so many, the steps of the history that have others of their kind.
        excess_ns: by how much they took longer than comparable steps.
        elapsed_ns: the time that `share` is of.
        share: the excess as a share of it.
        causes: of that excess, the largest first; they add up to it.
        worst: the steps with the largest excess.
    """

    count: int
    compared: int
    excess_ns: int
    elapsed_ns: int
    share: float
    causes: tuple[SlowCause, ...]
    worst: tuple[SlowStep, ...]


def slow_steps(run: Run) -> SlowSteps | None:
    """Return the slow steps; None where there are none."""
    found = analysis.of(run).excess
    if not len(found.steps):
        return None
    excess_ns = int(found.excess_ns.sum())
    worst = np.argsort(-found.excess_ns, kind="stable")[:_MOST_WORST]
    return SlowSteps(
        count=len(found.steps),
        compared=found.compared,
        excess_ns=excess_ns,
        elapsed_ns=found.elapsed_ns,
        share=excess_ns / found.elapsed_ns,
        causes=tuple(sorted(_causes(run, found), key=lambda one: -one.time_ns)),
        worst=tuple(slow_step(run, found, place) for place in worst.tolist()),
    )


def _causes(run: Run, found: Excess) -> Iterator[SlowCause]:
    parts_ns = np.vstack([found.parts_ns, found.unexplained_ns])
    names = [(one.name, one.words, one.remedy) for one in found.causes]
    for (name, words, remedy), times_ns in zip(
        [*names, (UNEXPLAINED, UNEXPLAINED, None)], parts_ns, strict=True
    ):
        if not times_ns.any():
            continue
        by_place = np.bincount(found.places - UNKNOWN, times_ns)
        yield SlowCause(
            cause=name,
            words=words,
            steps=int(np.count_nonzero(times_ns)),
            time_ns=int(times_ns.sum()),
            share=int(times_ns.sum()) / found.elapsed_ns,
            where=_place(run, int(by_place.argmax()) + UNKNOWN),
            remedy=remedy or None,
        )


def _place(run: Run, place: int) -> str | None:
    if place < 0:
        return "outside phases" if place == OUTSIDE else None
    return run.paths[place]


def slow_step(run: Run, found: Excess, place: int) -> SlowStep:
    """Return one of the slow steps, by its place among them."""
    step, times_ns = found.steps[place], found.parts_ns[:, place]
    order = np.argsort(-times_ns, kind="stable")
    took_ns = int(step["end_ns"] - step["begin_ns"])
    return SlowStep(
        step=int(step["index"]),
        took_ns=took_ns,
        typical_ns=int(found.typical_ns[place]),
        parts=tuple(
            SlowPart(
                found.causes[row].name,
                found.causes[row].words,
                int(times_ns[row]),
                found.note(row, place),
            )
            for row in order[: np.count_nonzero(times_ns)].tolist()
        ),
        unexplained_ns=int(found.unexplained_ns[place]),
        where=_place(run, int(found.places[place])),
        not_looked_at=tuple(
            one.words
            for one, is_known in zip(found.causes, found.is_known[:, place].tolist(), strict=True)
            if not is_known
        ),
    )


def slow_parts(found: SlowSteps | None) -> Iterator[Part]:
    """Yield what slow steps cost, by cause, and the worst of them."""
    if found is None or found.share < _SHOWN_SHARE:
        return
    unit = Unit.fitting(found.excess_ns)
    shown, rest = found.causes[:_MOST_ROWS], found.causes[_MOST_ROWS:]
    if rest:
        shown, rest = found.causes[: _MOST_ROWS - 1], found.causes[_MOST_ROWS - 1 :]
    rows = [
        Row(
            one.words,
            [f"{one.steps:,}", unit.text(one.time_ns), _percent(one.share)],
            note=printable(one.where or ""),
        )
        for one in shown
    ]
    if rest:
        time_ns, share = sum(one.time_ns for one in rest), sum(one.share for one in rest)
        rows.append(Row(f"{len(rest)} others", ["", unit.text(time_ns), _percent(share)]))
    yield Sentence()
    yield Sentence(_cost(found), "title")
    headers = ["cause", "steps", f"{unit.name} more", "% elapsed"]
    yield table([*headers], [rows])
    for one in found.worst[:3]:
        yield Sentence(step_words(one))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cost(found: SlowSteps) -> str:
    return (
        f"Slow steps: {found.count:,} of {found.compared:,} took {duration(found.excess_ns)} more "
        f"than others of their kind ({small_percent(found.share, 1)} of the time)"
    )


def slow_summary(found: SlowSteps | None) -> Iterator[Part]:
    """Yield a line on slow steps, where they are worth one."""
    if found is None or found.share < _SHOWN_SHARE:
        return
    named = [one for one in found.causes if one.time_ns >= _NAMED_SHARE * found.excess_ns]
    is_known = any(one.cause not in (UNEXPLAINED, NOT_LOOKED_AT) for one in named)
    if is_known or found.share >= _UNEXPLAINED_SHARE:
        words = ", ".join(f"{duration(one.time_ns)} {one.words}" for one in named[:3])
        yield Sentence(
            f"Slow steps: {found.count:,} of {found.compared:,}, "
            f"{small_percent(found.share, 1)} of the time: {words}"
        )


def step_words(one: SlowStep) -> str:
    """A slow step and its causes in a sentence."""
    parts = [
        (part.words + (f" ({part.note})" if part.note else ""), part.time_ns) for part in one.parts
    ]
    parts += [(UNEXPLAINED, one.unexplained_ns)] if one.unexplained_ns else []
    said = [f"{words} {duration(ns)}" for words, ns in parts if ns >= _NAMED_SHARE * one.excess_ns]
    where = f", in {one.where}" if one.where not in (None, "outside phases") else ""
    return printable(
        f"Step {one.step:,} took {duration(one.took_ns)}, {duration(one.excess_ns)} more than "
        f"others of its kind{where}: {', '.join(said)}"
    )


def slow_findings(run: Run) -> Iterator[Finding]:
    """The remedies that are worth an edit, or may be."""
    found = analysis.of(run).excess
    if not len(found.steps):
        return
    of_ns = found.elapsed_ns / found.compared
    costs = {one.cause: one for one in _causes(run, found)}
    for row, cause in enumerate(found.causes):
        cost = costs.get(cause.name)
        if cost is None or not cause.is_advised:
            continue
        low_ns = cause.saves[0] * int(found.least_ns[row].sum()) / found.compared
        high_ns = cause.saves[1] * int(found.most_ns[row].sum()) / found.compared
        is_sure = low_ns >= EDIT_SHARE * of_ns
        if not is_sure and high_ns < DOUBT_SHARE * of_ns:
            continue
        where = "" if cost.where is None else f", mostly in {cost.where}"
        yield Finding(
            kind="advice" if is_sure else "doubt",
            about=cause.words,
            low_ns=low_ns,
            high_ns=high_ns,
            likely_ns=None,
            of_ns=of_ns,
            of="elapsed time",
            promised=None,
            evidence=f"it made {counted(cost.steps, 'step')} of {found.compared:,} slower, by "
            f"{duration(cost.time_ns)} in all{where}",
            edit=cause.remedy,
            look=_LOOK,
            is_rare=True,
        )
