# SPDX-License-Identifier: Apache-2.0
"""The part of the report about the modules of the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.module_steps import NO_PASS
from pyinstrument_gpu.model.modules import ModulePass, ModuleTimes
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, counted, percent, table

MAX_MODULES = 200
"""Rows that the table shows at most."""

_WIDTH_FOR_NOTES = 100
_HOST_HEADERS = {
    ModulePass.FORWARD: "forward",
    ModulePass.BACKWARD: "backward",
    ModulePass.RECOMPUTE: "recompute",
}
_STREAM_HEADERS = {
    ModulePass.FORWARD: "device fwd",
    ModulePass.BACKWARD: "device bwd",
    ModulePass.RECOMPUTE: "device rec",
}


def modules_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The table of the run's modules, groups first; nothing if none were timed."""
    if not run.modules:
        return
    found = analysis.of(run).modules_per_step
    known = [one for row in found.values() for one in row.passes.values() if one is not None]
    kinds = [kind for kind in ModulePass if kind != ModulePass.RECOMPUTE or _has(run, kind)]
    stream_kinds = kinds if any(one.device_ns is not None for one in known) else []
    has_steps = run.step_totals.count > 0
    unit = Unit.fitting(max((max(one.host_ns, one.device_ns or 0) for one in known), default=0))

    def row(name: str, times: ModuleTimes) -> Row:
        passes, share = found[name].passes, found[name].share
        calls = passes.get(ModulePass.FORWARD, NO_PASS)
        decimals = 2 if has_steps else 0
        cells = [UNKNOWN if calls is None else f"{calls.count:,.{decimals}f}"]
        for kind in kinds:
            one = passes.get(kind)
            cells.append(unit.text(None if one is None else one.host_ns))
        for kind in stream_kinds:
            one = passes.get(kind)
            cells.append(unit.text(None if one is None else one.device_ns))
        if has_steps:
            cells.append(UNKNOWN if share is None else percent(share, 1))
        is_noted = times.modules > 1 and width >= _WIDTH_FOR_NOTES
        return Row(name, cells, note=counted(times.modules, "module") if is_noted else "")

    shown = [*run.modules.items()][:MAX_MODULES]
    groups = [row(name, times) for name, times in shown if times.modules > 1]
    singles = [row(name, times) for name, times in shown if times.modules == 1]
    headers = [
        *("module", "calls"),
        *(_HOST_HEADERS[kind] for kind in kinds),
        *(_STREAM_HEADERS[kind] for kind in stream_kinds),
        *(["% step"] if has_steps else []),
    ]
    yield Text()
    yield Text(f"Modules: {unit.name} {'per step' if has_steps else 'over the whole run'}", "bold")
    yield table(headers, [groups, singles], width)
    if len(run.modules) > MAX_MODULES:
        more = counted(len(run.modules) - MAX_MODULES, "more row")
        yield Text(f"... and {more} (report --json has all)", "yellow")
    yield from _remarks(run)


def _remarks(run: RunData) -> Iterator[Text]:
    yield Text("Times include the modules inside, so rows don't add up")
    if _has(run, ModulePass.RECOMPUTE):
        yield Text("recompute happens during the backward pass, and is not part of backward here")
    if not all(times.backward for times in run.modules.values()):
        yield Text("- in backward: no backward pass was seen to go through the module")
    if any(None in row.passes.values() for row in analysis.of(run).modules_per_step.values()):
        yield Text("- elsewhere: none of these passes is left in the history")
    kept, outside = len(run.module_spans), np.count_nonzero(run.module_spans["step"] < 0)
    if run.step_totals.count and outside:
        which = "passes" if kept == run.modules.passes else "passes in the history"
        yield Text(f"Outside steps, and not in the table: {outside:,} of {kept:,} {which}")
    devices = [times.of_pass(kind)[1] for times in run.modules.values() for kind in ModulePass]
    timed = sum(device.count for device in devices if device is not None)
    if 0 < timed < run.modules.passes:
        yield Text(
            f"Stream times are known of {timed:,} of {run.modules.passes:,} passes; their mean "
            "stands for all"
        )


def _has(run: RunData, kind: ModulePass) -> bool:
    return any(times.of_pass(kind)[0] is not None for times in run.modules.values())
