# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job side by side: who is slow, and in which phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, table

_WIDTH = 80


def ranks_report(runs: Mapping[int, RunData], missing: Sequence[str]) -> str:
    """A table of the times per step of each outermost phase, for runs by rank: mean over the ranks,
    least and most. `missing` has a sentence for each rank that is not there."""
    return printed(ranks_parts(runs, missing), _WIDTH)


def ranks_parts(runs: Mapping[int, RunData], missing: Sequence[str]) -> list[Text | Table]:
    """The same, as `rich` prints it."""
    parts: list[Text | Table] = [Text(f"Ranks: {len(runs)} of {len(runs) + len(missing)}", "bold")]
    by_phase = _per_step_ns({rank: run for rank, run in runs.items() if run.step_totals.count})
    if by_phase:
        steps_ns = by_phase.pop("step")
        unit = Unit.fitting(max(steps_ns.values()))
        rows = [_row(phase, times_ns, unit) for phase, times_ns in by_phase.items()]
        headers = [f"{unit.name} per step", "mean", "least", "rank", "most", "rank"]
        parts.append(table(headers, [rows, [_row("step", steps_ns, unit)]], _WIDTH))
    parts += [Text(f"! {sentence}", "yellow") for sentence in missing]
    return parts


def _per_step_ns(runs: Mapping[int, RunData]) -> dict[str, dict[int, float]]:
    """By phase and rank; the step itself under "step". A rank without the phase is not in it."""
    times_ns: dict[str, dict[int, float]] = {}
    for rank, run in runs.items():
        count = run.step_totals.count
        for path, phase in run.phases_in(Scope.STEP).items():
            if "/" not in path and phase.host is not None:
                times_ns.setdefault(path, {})[rank] = phase.host.total_ns / count
    for rank, run in runs.items():
        times_ns.setdefault("step", {})[rank] = run.step_totals.duration.mean_ns
    return times_ns


def _row(name: str, times_ns: Mapping[int, float], unit: Unit) -> Row:
    least, most = min(times_ns, key=times_ns.__getitem__), max(times_ns, key=times_ns.__getitem__)
    mean_ns = sum(times_ns.values()) / len(times_ns) if times_ns else None
    cells = [unit.text(mean_ns), unit.text(times_ns[least]), str(least)]
    cells += [unit.text(times_ns[most]), str(most)] if len(times_ns) > 1 else [UNKNOWN, UNKNOWN]
    return Row(name, cells)
