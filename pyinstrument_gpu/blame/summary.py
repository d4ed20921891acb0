# SPDX-License-Identifier: Apache-2.0
"""The result of a blame, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyinstrument_gpu.analysis.compare import Comparison, PhaseChange, Slowdown
from pyinstrument_gpu.analysis.contention import CONTENTION
from pyinstrument_gpu.blame.blame import BlameResult
from pyinstrument_gpu.blame.commits import Commit
from pyinstrument_gpu.gate.gate import GateResult
from pyinstrument_gpu.gate.summary import facts as gate_facts
from pyinstrument_gpu.gate.summary import meaning, verdict_line
from pyinstrument_gpu.parts.words import capitalised, counted, printable

_MOST_COMMITS = 10


def text(result: BlameResult) -> str:
    """Return the result as text for a terminal, the answer in the first line."""
    return "\n".join(map(printable, _lines(result)))


def _lines(result: BlameResult) -> Iterator[str]:
    runs = counted(result.runs, "run")
    found = result.confirmation
    if found is not None:
        yield f"{_named(result.suspects)}: {_change_text(found)}, found in {runs}"
        yield f"The commits before and after it: {verdict_line(found)}"
        yield f"From the first commit to the last: {verdict_line(result.ends)}"
    elif not result.ends.is_slower:
        yield f"No commit is named after {runs}: {verdict_line(result.ends)}"
        changed = meaning(result.ends).replace("The candidate", "The last commit")
        yield changed.replace("the candidate", "the last commit")
    else:
        yield f"No commit is named: {runs} don't show which one it is"
        yield f"From the first commit to the last: {verdict_line(result.ends)}"
        yield f"Probably one of these, which is not shown: {_listed(result.likely)}"
    if found is None and result.ends.slowdown is not Slowdown.NOT_SLOWER:
        yield "With a larger --max-runs the same command goes on from here. Longer runs tell more"
        if not result.ends.plan.undisturbed:
            yield f"--at-once shows smaller changes under {CONTENTION}"
    for commit, reason in result.skipped.items():
        yield f"{commit.text} can't be run: {reason.splitlines()[0]}"
    for warning in (found or result.ends).warnings:
        yield f"{capitalised(warning)}"


def _named(suspects: Sequence[Commit]) -> str:
    if len(suspects) == 1:
        return suspects[0].text
    return f"One of {len(suspects)} commits, as those between can't be run: {_listed(suspects)}"


def _listed(commits: Sequence[Commit]) -> str:
    shown = ", ".join(commit.text for commit in commits[:_MOST_COMMITS])
    more = len(commits) - _MOST_COMMITS
    return f"{shown} and {more} more" if more > 0 else shown


def _change_text(found: GateResult) -> str:
    """The phase that became longer most, beyond the noise; all of the time if there is none."""
    phase = slowest_phase(found.comparison)
    if phase is None or phase.interval_ns is None:
        elapsed = found.comparison.elapsed
        low, high = elapsed.interval or (0.0, 0.0)
        where = f"{found.time} time per {found.comparison.unit}"
        return f"{where} {_percents(elapsed.change, low, high)}, in no phase beyond the noise"
    name = f"{phase.path} outside steps" if phase.is_outside else phase.path
    if not phase.before_ns:
        return f"{name} is new"
    low, high = (max(-1.0, end / phase.before_ns) for end in phase.interval_ns)
    return f"{name} {_percents(phase.change_ns / phase.before_ns, low, high)}"


def slowest_phase(found: Comparison) -> PhaseChange | None:
    """Return the phase that became longer most, beyond the noise; no smaller one in its place."""
    slowest = max(found.phases, key=lambda phase: phase.change_ns)
    is_longer = slowest.change_ns > 0 and slowest in found.significant_phases
    return slowest if is_longer else None


def _percents(change: float, low: float, high: float) -> str:
    return f"{100 * change:+.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def facts(result: BlameResult) -> dict[str, Any]:
    """Return the whole result for JSON."""
    found = result.confirmation
    phase = None if found is None else slowest_phase(found.comparison)
    return {
        "result": text(result).splitlines()[0],
        "suspects": _facts_of(result.suspects),
        "likely": _facts_of(result.likely),
        "phase": None if phase is None else phase.path,
        "runs": result.runs,
        "skipped": [
            {"commit": commit.sha, "subject": commit.subject, "reason": reason}
            for commit, reason in result.skipped.items()
        ],
        "ends": gate_facts(result.ends),
        "confirmation": None if found is None else gate_facts(found),
    }


def _facts_of(commits: Sequence[Commit]) -> list[dict[str, str]]:
    return [{"commit": commit.sha, "subject": commit.subject} for commit in commits]
