# SPDX-License-Identifier: Apache-2.0
"""What is said of a step that takes longer and longer, or that has changed for good."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding, unpriced
from pyinstrument_gpu.analysis.trend import OUTSIDE, Place, Trend
from pyinstrument_gpu.core.aspect import where_in_program
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.words import duration, small_percent

_LOOK = "pyinstrument-gpu report RUN --html run.html"


def trend_findings(run: Run) -> Iterator[Finding]:
    """Yield the trend of the run, if it has one."""
    found = analysis.of(run).trend
    if run.syncs.is_as_if:
        return
    if found is None:
        if (hooks := _hooks(run)) is not None:
            yield unpriced(
                "doubt", "hooks that pile up", hooks, "remove them: handle.remove()", _LOOK
            )
        return
    where, line = _where(run, found.place)
    share = ""
    if found.place is not None and where is not None:
        share = f"; {small_percent(found.place.share, 1.0)} of the change is {where}"
    yield Finding(
        kind="doubt",
        about=_about(found),
        low_ns=0.0,
        high_ns=found.more_ns,
        likely_ns=None,
        of_ns=found.of_ns,
        of="step",
        promised=None,
        evidence=f"a step takes {_levels(found)}{share}",
        edit=_edit(run, found, where, line),
        look=_LOOK,
    )


def _about(found: Trend) -> str:
    """Return what is told in words of which "no more" can stand."""
    if found.since is None:
        is_growth = found.shape == "growth"
        return "growth of the step over the run" if is_growth else "slow steps early in the run"
    if found.shape == "jump":
        return "slowdown " + (
            "after the first epoch" if found.is_epoch else f"at step {found.since:,}"
        )
    return "slow steps " + (
        "in the first epoch" if found.is_epoch else f"before step {found.since:,}"
    )


def _levels(found: Trend) -> str:
    early, late = duration(found.early_ns), duration(found.late_ns)
    if found.since is None:
        return f"{early} in the first fifth of the run and {late} in the last"
    if found.is_epoch:
        return f"{early} in the first epoch and {late} after it"
    return f"{early} before step {found.since:,} and {late} from there on"


def _edit(run: Run, found: Trend, where: str | None, line: str | None) -> str:
    steps = _levels(found)
    if where is None:
        return f"a step takes {steps}"
    called = "" if line is None else f" (first called at {line})"
    if found.place is not None:
        phase = None if found.place.path == OUTSIDE else run.paths[found.place.path]
        called = where_in_program(run, Scope.STEP, phase) or called
    if found.shape != "fall" and (hooks := _hooks(run)) is not None:
        return f"remove hooks (handle.remove()), as {hooks}{called}: a step takes {steps}"
    if found.shape == "growth":
        each = duration(found.per_step_ns)
        return f"see what grows {where}{called}: a step takes {steps}, {each} more each step"
    if found.shape == "fall":
        return f"see what takes longer at first {where}{called}: a step takes {steps}"
    return f"see what changes {where}{called}: a step takes {steps}"


def _hooks(run: Run) -> str | None:
    """Return which line registers hooks in step after step that nobody removes, in words."""
    call = next(run.setup_calls.of_kind("hooks"), None)
    if call is None:
        return None
    line = run.name_of_line(call.place)
    return f"{call.call} at {line} adds one in each step, and {call.hooks:,} or more are there"


def _where(run: Run, place: Place | None) -> tuple[str | None, str | None]:
    """Return the place in words, and the line of the phase in them."""
    if place is None:
        return None, None
    if place.path != OUTSIDE:
        return f"in {run.paths[place.path]}", run.line_of_phase(place.path)
    gap = place.gap
    if gap is not None and gap.before >= 0:
        return f"outside phases, after {run.paths[gap.before]}", run.line_of_phase(gap.before)
    if gap is not None and gap.behind >= 0:
        return f"outside phases, before {run.paths[gap.behind]}", run.line_of_phase(gap.behind)
    return "outside phases", None
