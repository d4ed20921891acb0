# SPDX-License-Identifier: Apache-2.0
"""The part of the report about the modules of the model."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.aspects.modules.section import Modules, ModuleTimes
from pyinstrument_gpu.parts.parts import NOTES, Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, percent

MAX_MODULES = 200
"""Rows that the table shows at most."""

_RECOMPUTED = ("recompute", "device rec")


def modules_section(modules: Modules | None) -> Iterator[Part]:
    """The table of the run's modules, groups first; nothing if none were timed."""
    if modules is None:
        return
    rows = modules.rows
    columns = {
        "forward": [row.forward_ns for row in rows],
        "backward": [row.backward_ns for row in rows],
        "recompute": [row.recompute_ns for row in rows],
    }
    on_device = {
        "device fwd": [row.device_forward_ns for row in rows],
        "device bwd": [row.device_backward_ns for row in rows],
        "device rec": [row.device_recompute_ns for row in rows],
    }
    if any(time_ns is not None for column in on_device.values() for time_ns in column):
        columns |= on_device
    if not modules.has_recomputation:
        columns = {name: column for name, column in columns.items() if name not in _RECOMPUTED}
    unit = Unit.fitting(max(time_ns or 0 for column in columns.values() for time_ns in column))
    decimals = 2 if modules.per_step else 0

    def line(module: ModuleTimes, times_ns: tuple[float | None, ...]) -> Row:
        cells = [UNKNOWN if module.calls is None else f"{module.calls:,.{decimals}f}"]
        cells += map(unit.text, times_ns)
        if modules.per_step:
            cells.append(UNKNOWN if module.share is None else percent(module.share, 1))
        is_group = module.modules > 1
        return Row(module.name, cells, note=counted(module.modules, "module") if is_group else "")

    shown = [*zip(rows, zip(*columns.values(), strict=True), strict=True)][:MAX_MODULES]
    groups = [line(module, times_ns) for module, times_ns in shown if module.modules > 1]
    singles = [line(module, times_ns) for module, times_ns in shown if module.modules == 1]
    headers = ["module", "calls", *columns, *(["% step"] if modules.per_step else [])]
    yield Sentence()
    yield Sentence(
        f"Modules: {unit.name} {'per step' if modules.per_step else 'over the whole run'}", "title"
    )
    yield table(headers, [groups, singles], wide_only=(NOTES,))
    if len(rows) > MAX_MODULES:
        more = counted(len(rows) - MAX_MODULES, "more row")
        yield Sentence(f"... and {more} (report --json --all-rows has all)", "warn")
    yield from _remarks(modules)


def _remarks(modules: Modules) -> Iterator[Sentence]:
    yield Sentence("Times include the modules inside, so rows don't add up")
    if modules.has_recomputation:
        yield Sentence(
            "recompute happens during the backward pass, and is not part of backward here\n"
            "where a module checkpoints within its own call, only the rows inside have it"
        )
    if not modules.all_have_backward:
        yield Sentence("- in backward: no backward pass was seen to go through the module")
    if not modules.all_are_kept:
        yield Sentence("- elsewhere: none of these passes is left in the history")
    if modules.timed_steps is not None:
        yield Sentence(
            f"Modules were timed in {modules.timed_steps:,} of {modules.kept_steps:,} steps, "
            "which stand for all"
        )
    if modules.outside_passes:
        is_whole = modules.kept_passes == modules.passes
        which = "passes" if is_whole else "passes in the history"
        yield Sentence(
            f"Outside steps, and not in the table: {modules.outside_passes:,} of "
            f"{modules.kept_passes:,} {which}"
        )
    if 0 < modules.timed_passes < modules.passes:
        yield Sentence(
            f"Stream times are known of {modules.timed_passes:,} of {modules.passes:,} passes; "
            "their mean stands for all"
        )
