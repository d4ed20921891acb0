# SPDX-License-Identifier: Apache-2.0
"""How well savings and advice do against simulated programs, in which the truth is known.

    python -m tests.helpers.calibration --programs 500 --seed 0 [--family NAME]
    python -m tests.helpers.calibration --show SEED --family NAME

For each change that a program could have, the truth is what its elapsed time per step loses when
the change is made. With several ranks there are two, as the change may be made on all of them, or
on the recorded one alone: "at most" must hold for both, all else is judged by the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import in_order, subject
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.edits import edits
from tests.helpers.simulator.families import FAMILIES, drawn
from tests.helpers.simulator.listing import listing
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.simulation import simulated

_KINDS = {
    "SYNC": "sync",
    "ALL_SYNCS": "all syncs",
    "COPIES": "copies",
    "DATA_WAIT": "data",
    "LAUNCHES": "launches",
}
"""By the names of `Change`."""
_ROUNDING = 0.001
"""By how much of the step "at most" may be exceeded: clocks, and what events cost."""
_EDGE = 0.005
"""By how much of the step the truth may lie outside of the range."""
_WORTHLESS, _WORTH, _LARGE, _TENTH = 0.005, 0.02, 0.05, 0.1
"""Shares of the step: what is not worth an edit, what is, and what must be mentioned."""


def edit_of(run: Run, saving: Any) -> Edit | None:
    """The change that a saving speaks of; None where programs here can't be changed so."""
    kind = _KINDS.get(saving.change.name)
    if kind is None:
        return None
    is_inside = saving.is_inside
    if kind == "sync":
        return Edit(kind, site=saving.site, is_inside=is_inside)
    if kind in ("all syncs", "copies"):
        return Edit(kind, is_inside=None)
    path = run.paths[saving.path] if kind == "launches" else ""
    return Edit(kind, path=path, is_inside=is_inside)


def _as_advised(edit: Edit) -> Edit:
    """The change that advice can bring about: more workers still have to hand over each batch."""
    return replace(edit, kind="workers") if edit.kind == "data" else edit


@dataclass(frozen=True)
class Outcome:
    """What was said of a change, and what it saves. Times are per step.

    Attributes:
        truths_ns: of the edit as advice has it, on all ranks, and on this one alone.
        beyond_ns: of edits that go further: no batch takes any time, not even to be handed over.
        saving: None where nothing was said.
        advised: its place in the advice, and among the doubts that come before it; None where it
            is in none.
        doubted: whether it is named among what can't be told.
    """

    family: str
    seed: int
    edit: Edit
    truths_ns: tuple[float, ...]
    beyond_ns: tuple[float, ...]
    step_ns: float
    saving: Any
    advised: int | None
    doubted: bool

    @property
    def truth_ns(self) -> float:
        return self.truths_ns[0]

    @property
    def truth(self) -> float:
        """As a share of the step."""
        return self.truth_ns / self.step_ns

    @property
    def best_truth(self) -> float:
        """The larger one, as a share of the step."""
        return max(self.truths_ns) / self.step_ns

    @property
    def is_beaten(self) -> bool:
        most_ns = max(self.truths_ns + self.beyond_ns)
        return bool(most_ns > self.saving.at_most_ns + _ROUNDING * self.step_ns)

    @property
    def range_ns(self) -> tuple[float, float]:
        saving = self.saving
        low_ns = getattr(saving, "low_ns", saving.likely_ns)
        return low_ns, getattr(saving, "high_ns", saving.at_most_ns)

    @property
    def is_covered(self) -> bool:
        low_ns, high_ns = self.range_ns
        edge_ns = _EDGE * self.step_ns
        # Nobody keeps workers that take longer to hand over a batch than the loop to make it.
        truth_ns = max(self.truth_ns, 0.0) if self.edit.kind == "data" else self.truth_ns
        return low_ns - edge_ns <= truth_ns <= high_ns + edge_ns

    @property
    def is_worth(self) -> bool:
        return self.truth >= _WORTH

    @property
    def is_close(self) -> bool:
        off_ns = abs(self.saving.likely_ns - self.truth_ns)
        least_ns = 0.0 if self.is_worth else 0.01 * self.step_ns
        return bool(off_ns <= max(0.2 * abs(self.truth_ns), least_ns))

    @property
    def is_worthless_advice(self) -> bool:
        return self.advised is not None and self.best_truth < _WORTHLESS

    def __str__(self) -> str:
        said = "nothing said"
        if self.saving is not None:
            low_ns, high_ns = self.range_ns
            numbers = (low_ns, self.saving.likely_ns, high_ns, self.saving.at_most_ns)
            low, likely, high, most = (f"{100 * ns / self.step_ns:.2f}" for ns in numbers)
            said = f"low {low} likely {likely} high {high} at most {most}"
        truths = ", ".join(f"{100 * ns / self.step_ns:.2f}" for ns in self.truths_ns)
        where = "" if self.advised is None else f", advice {self.advised + 1}"
        where += ", doubted" if self.doubted else ""
        return f"{self.family} {self.seed}: {self.edit}: true {truths} %, {said}{where}"


@dataclass(frozen=True)
class Judged:
    """A program, and all its outcomes."""

    family: str
    seed: int
    program: Program
    run: Run
    outcomes: tuple[Outcome, ...]

    @cached_property
    def best(self) -> Outcome | None:
        """The single change that saves most. All syncs together are several."""
        single = [each for each in self.outcomes if each.edit.kind != "all syncs"]
        return max(single, key=lambda each: each.truth, default=None)

    @property
    def first(self) -> Outcome | None:
        """What is advised first."""
        advised = [each for each in self.outcomes if each.advised is not None]
        return min(advised, key=lambda each: each.advised or 0, default=None)

    @property
    def best_told(self) -> Outcome | None:
        """The same without what is named among the things that can't be told."""
        told = [
            each
            for each in self.outcomes
            if each.edit.kind != "all syncs" and not (each.doubted and each.advised is None)
        ]
        return max(told, key=lambda each: each.truth, default=None)

    def is_mentioned(self, outcome: Outcome) -> bool:
        """Whether the report speaks of it. Of all syncs together it does if it speaks of any. Where
        syncs were not watched, the device was not timed, or steps waited for a processor, it says
        that, and can name none."""
        if analysis.of(self.run).is_contended:
            return True
        doubts = analysis.of(self.run).doubts
        unseen = {each.about for each in doubts if each.low_ns is None}
        is_wait = outcome.edit.kind in ("sync", "copies", "all syncs")
        if (is_wait and "waits for the device" in unseen) or (
            outcome.edit.kind == "launches" and "launches" in unseen
        ):
            return True
        if outcome.edit.kind != "all syncs":
            return outcome.advised is not None or outcome.doubted
        return any(
            each.edit.kind in ("sync", "copies", "all syncs")
            and (each.advised is not None or each.doubted)
            for each in self.outcomes
        )


def judged(family: str, seed: int) -> Judged:
    program = drawn(family, seed)
    before = simulated(program)
    run = before.run
    steps = run.steps.closed
    step_ns = float(durations_ns_of(steps).mean())
    found = analysis.of(run)
    savings = {edit_of(run, row): row for row in found.savings.rows}
    edit_about = {subject(run, row): edit_of(run, row) for row in found.savings.rows}
    told = in_order(each for each in (*found.advice, *found.doubts) if each.low_ns is not None)
    while told and not told[-1].is_certain:
        told.pop()
    advised = [edit_about[each.about] for each in told]
    doubted = {edit_about[each.about] for each in found.doubts if each.low_ns is not None}
    outcomes = tuple(
        Outcome(
            family=family,
            seed=seed,
            edit=edit,
            truths_ns=before.saved_ns(_as_advised(edit)),
            beyond_ns=before.saved_ns(edit) if edit.kind == "data" else (),
            step_ns=step_ns,
            saving=savings.get(edit),
            advised=advised.index(edit) if edit in advised else None,
            doubted=edit in doubted,
        )
        for edit in edits(program)
    )
    return Judged(family, seed, program, run, outcomes)


@dataclass(frozen=True)
class Share:
    """How many of how many, and the worst of them."""

    count: int
    of: int
    worst: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{100 * self.share:5.1f} % of {self.of}" if self.of else "-"


@dataclass(frozen=True)
class Calibration:
    """Many judged programs together."""

    programs: Sequence[Judged]

    def outcomes(self, kind: str | None = None) -> list[Outcome]:
        found = (outcome for each in self.programs for outcome in each.outcomes)
        return [each for each in found if kind in (None, each.edit.kind)]

    def said(self, kind: str | None = None) -> list[Outcome]:
        return [each for each in self.outcomes(kind) if each.saving is not None]

    def beaten(self, kind: str | None = None) -> Share:
        said = self.said(kind)
        bad = [each for each in said if each.is_beaten]
        bad.sort(key=lambda each: each.saving.at_most_ns / each.step_ns - each.best_truth)
        return _share(bad, len(said))

    def covered(self, kind: str | None = None) -> Share:
        said = self.said(kind)
        bad = [each for each in said if not each.is_covered]
        bad.sort(key=lambda each: -_outside_ns(each) / each.step_ns)
        return Share(len(said) - len(bad), len(said), _lines(bad))

    def close(self, kind: str | None = None) -> Share:
        said = [each for each in self.said(kind) if each.is_worth]
        bad = [each for each in said if not each.is_close]
        bad.sort(key=lambda each: -abs(each.saving.likely_ns - each.truth_ns) / each.step_ns)
        return Share(len(said) - len(bad), len(said), _lines(bad))

    def close_told(self, kind: str | None = None) -> Share:
        """The same of those whose likely saving is told, and not only the range of it."""
        said = [each for each in self.said(kind) if each.is_worth and each.saving.is_told]
        bad = [each for each in said if not each.is_close]
        return Share(len(said) - len(bad), len(said), _lines(bad))

    def worthless(self, kind: str | None = None) -> Share:
        advised = [each for each in self.outcomes(kind) if each.advised is not None]
        bad = [each for each in advised if each.is_worthless_advice]
        bad.sort(key=lambda each: -each.saving.likely_ns / each.step_ns)
        return _share(bad, len(advised))

    def best_first(self, kind: str | None = None) -> Share:
        """Over the programs with something worth an edit of which something is advised."""
        return self._best_first(kind, [each.best for each in self.programs])

    def best_told_first(self, kind: str | None = None) -> Share:
        """The same without what is named among the things that can't be told."""
        return self._best_first(kind, [each.best_told for each in self.programs])

    def _best_first(self, kind: str | None, best: Sequence[Outcome | None]) -> Share:
        of = [
            (found, each.first)
            for each, found in zip(self.programs, best, strict=True)
            if found is not None and found.is_worth and each.first is not None
        ]
        of = [each for each in of if kind in (None, each[0].edit.kind)]
        bad = [each for each in of if each[1].truth < 0.9 * each[0].truth]
        bad.sort(key=lambda each: each[1].truth - each[0].truth)
        lines = tuple(f"{found}\n      first {first}" for found, first in bad)
        return Share(len(of) - len(bad), len(of), lines)

    def unmentioned(self, kind: str | None = None) -> Share:
        of, bad = 0, []
        for program in self.programs:
            for each in program.outcomes:
                if kind in (None, each.edit.kind) and each.truth >= _LARGE:
                    of += 1
                    if not program.is_mentioned(each):
                        bad.append(each)
        bad.sort(key=lambda each: -each.truth)
        return _share(bad, of)

    def speechless(self, kind: str | None = None) -> Share:
        """Programs in which one change saves a tenth or more, and the report names no change at
        all, as advice or as a doubt."""
        of = [each for each in self.programs if each.best is not None]
        of = [each for each in of if each.best and each.best.truth >= _TENTH]
        of = [each for each in of if each.best and kind in (None, each.best.edit.kind)]
        bad = [
            each.best for each in of if each.best and not any(map(each.is_mentioned, each.outcomes))
        ]
        return _share(bad, len(of))

    def silent(self) -> Share:
        """Programs with something worth an edit of which nothing is advised."""
        of = [each for each in self.programs if each.best is not None and each.best.is_worth]
        bad = [each.best for each in of if each.first is None and each.best is not None]
        return _share(bad, len(of))


COLUMNS = (
    "beaten",
    "covered",
    "close",
    "close_told",
    "worthless",
    "best_first",
    "best_told_first",
    "unmentioned",
    "speechless",
)


def _outside_ns(outcome: Outcome) -> float:
    low_ns, high_ns = outcome.range_ns
    return max(low_ns - outcome.truth_ns, outcome.truth_ns - high_ns)


def _share(bad: Sequence[Outcome], of: int) -> Share:
    return Share(len(bad), of, _lines(bad))


def _lines(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    return tuple(map(str, outcomes))


def calibration(programs: int, seed: int, families: Sequence[str] = FAMILIES) -> Calibration:
    """So many programs, evenly from the families, from this seed on."""
    return Calibration(
        [
            judged(families[number % len(families)], seed + number // len(families))
            for number in range(programs)
        ]
    )


# --- the command ---


def _table(found: Calibration) -> Iterator[str]:
    yield f"{'':14}" + "".join(f"{name.replace('_', ' '):>18}" for name in COLUMNS)
    rows: list[tuple[str, Calibration, str | None]] = [("all", found, None)]
    rows += [(kind, found, kind) for kind in _KINDS.values()]
    for family in dict.fromkeys(each.family for each in found.programs):
        part = Calibration([each for each in found.programs if each.family == family])
        rows.append((family, part, None))
    for name, part, kind in rows:
        shares = (getattr(part, column)(kind) for column in COLUMNS)
        yield f"{name:14}" + "".join(f"{share!s:>18}" for share in shares)
    yield f"programs with something worth an edit, and no advice: {found.silent()}"


def _shown(family: str, seed: int) -> Iterator[str]:
    found = judged(family, seed)
    yield from listing(found.program)
    yield ""
    step_ns = found.outcomes[0].step_ns if found.outcomes else 0.0
    yield f"step {step_ns / 1e6:.3f} ms; all below in % of it"
    for outcome in sorted(found.outcomes, key=lambda each: -each.truth):
        yield f"  {outcome}"
    for number, each in enumerate(analysis.of(found.run).advice):
        yield f"advice {number + 1}: {each.about}: {each.edit} ({each.evidence})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=500, help="how many (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: 0)")
    parser.add_argument("--family", choices=FAMILIES, help="only this one")
    parser.add_argument("--show", type=int, metavar="SEED", help="show one program of a family")
    parser.add_argument("--worst", type=int, default=6, help="worst cases per column (default: 6)")
    arguments = parser.parse_args()
    if arguments.show is not None:
        if arguments.family is None:
            parser.error("--show needs --family NAME, the family that the seed is of")
        print("\n".join(_shown(arguments.family, arguments.show)))
        return
    families = FAMILIES if arguments.family is None else (arguments.family,)
    found = calibration(arguments.programs, arguments.seed, families)
    print("\n".join(_table(found)))
    for column in COLUMNS:
        share: Share = getattr(found, column)()
        print(f"\n{column.replace('_', ' ')}: {share}; worst:")
        for line in share.worst[: arguments.worst]:
            print(f"    {line}")


if __name__ == "__main__":
    main()
