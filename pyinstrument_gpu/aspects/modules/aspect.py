# SPDX-License-Identifier: Apache-2.0
"""The modules of the model as an aspect of a run: how they are read, and what a report says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.modules.data import (
    MODULE_SPAN_DTYPE,
    ModulePass,
    Modules,
    fold_module_spans,
)
from pyinstrument_gpu.aspects.modules.file import take_modules_out
from pyinstrument_gpu.aspects.modules.live import LiveModules
from pyinstrument_gpu.aspects.modules.per_step import NO_PASS, ModulePerStep, modules_per_step
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.steps import module_step_weights
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import NOTES, Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, percent, printable, small_percent


@dataclass(frozen=True)
class ModuleMeans:
    """A module, or a group of modules whose names differ by an index alone. Numbers are means per
    step, or of the whole run where no step ended. Times include the modules inside.

    Attributes:
        name: of a group with `*` for each index.
        modules: how many modules the name stands for.
        calls: how often they are called.
        forward_ns, backward_ns: on the host.
        recompute_ns: of calls that repeat earlier ones during a backward pass; not in
            `backward_ns`.
        device_forward_ns, device_backward_ns, device_recompute_ns: the same on the device.
        share: of the step.
    """

    name: str
    modules: int
    calls: float | None
    forward_ns: float | None
    backward_ns: float | None
    recompute_ns: float | None
    device_forward_ns: float | None
    device_backward_ns: float | None
    device_recompute_ns: float | None
    share: float | None


@dataclass(frozen=True)
class ModulesSection:
    """The modules of the model.

    Attributes:
        per_step: false: no step ended, so that numbers are of the whole run.
        rows: groups first.
        has_recomputation: whether calls were repeated during backward passes.
        all_have_backward: false: no backward pass was seen to go through some of them.
        all_are_kept: false: of some, no pass is left in the history, so that their times are
            unknown.
        passes: how often modules were gone through in the whole run, forward or backward.
        timed_passes: how many of these were timed on the device; their mean stands for all.
        kept_passes: how many of these are in the history.
        outside_passes: how many of those in the history lie outside steps, and are in no row.
        timed_steps: in how many of the steps in the history modules were timed, where not in all;
            the numbers are means over these, each with the number of steps for which it stands.
        kept_steps: of how many.
    """

    per_step: bool
    rows: tuple[ModuleMeans, ...]
    has_recomputation: bool
    all_have_backward: bool
    all_are_kept: bool
    passes: int
    timed_passes: int
    kept_passes: int
    outside_passes: int
    timed_steps: int | None
    kept_steps: int


class ModulesAspect(Aspect[Run, ModulesSection]):
    """The times of the model's modules, forward and backward."""

    name = "modules"
    comes_first = True
    section_type = ModulesSection | None
    live = LiveModules()
    about = "of the model, forward and backward."
    in_preview = False

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names, spans = tuple(given.get("module_names", ())), given.get("module_spans")
        if spans is None:
            spans = np.empty(0, MODULE_SPAN_DTYPE)
        modules = given.get("modules")
        if modules is None:
            modules = Modules(fold_module_spans(spans, names))
        return {
            "modules": modules,
            "module_names": names,
            "module_spans": spans,
            "module_step_weights": given.get("module_step_weights"),
        }

    def read(self, found: Found) -> dict[str, Any]:
        items = found.step_records.items[: len(found.steps)]
        return {"module_step_weights": module_step_weights(items)}

    def take_out(self, run: dict[str, Any], found: Found) -> None:
        if found.tables.path_kinds.any():
            take_modules_out(run, found.tables.path_kinds)

    def join_history(self, run: Run, earlier: Run) -> None:
        run.module_names, run.module_spans = earlier.module_names, earlier.module_spans
        run.module_step_weights = earlier.module_step_weights

    def section(self, run: Run) -> ModulesSection | None:
        """Return the section; None if no modules were timed."""
        if not run.modules:
            return None
        found, weights = modules_per_step(run), run.module_step_weights
        per_step = run.step_totals.count > 0
        devices = [times.of_pass(kind)[1] for times in run.modules.values() for kind in ModulePass]
        return ModulesSection(
            per_step=per_step,
            rows=tuple(
                _row(times.name, times.modules, found[name]) for name, times in run.modules.items()
            ),
            has_recomputation=any(times.recompute is not None for times in run.modules.values()),
            all_have_backward=all(times.backward for times in run.modules.values()),
            all_are_kept=not any(None in row.passes.values() for row in found.values()),
            passes=run.modules.passes,
            timed_passes=sum(device.count for device in devices if device is not None),
            kept_passes=len(run.module_spans),
            outside_passes=int(np.count_nonzero(run.module_spans["step"] < 0)) if per_step else 0,
            timed_steps=None
            if weights is None or weights.all()
            else int(np.count_nonzero(weights)),
            kept_steps=len(run.steps.closed),
        )

    def summary(self, modules: ModulesSection, document: ReportedRun) -> Iterable[Part]:
        # "*" is the group of all modules in the model, as in a Sequential.
        known = [row for row in modules.rows if row.name not in ("", "*") and (row.share or 2) <= 1]
        longest = max(known, key=lambda row: row.share or 0.0, default=None)
        if longest is not None and longest.share is not None:
            yield Sentence(
                f"Modules: {printable(longest.name)} takes most, "
                f"{small_percent(longest.share, 1)} of the step"
            )

    def parts(self, modules: ModulesSection, document: ReportedRun) -> Iterable[Part]:
        """The table of the run's modules, groups first."""
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

        def line(module: ModuleMeans, times_ns: tuple[float | None, ...]) -> Row:
            cells = [UNKNOWN if module.calls is None else f"{module.calls:,.{decimals}f}"]
            cells += map(unit.text, times_ns)
            if modules.per_step:
                cells.append(UNKNOWN if module.share is None else percent(module.share, 1))
            is_group = module.modules > 1
            return Row(
                module.name, cells, note=counted(module.modules, "module") if is_group else ""
            )

        shown = [*zip(rows, zip(*columns.values(), strict=True), strict=True)][:MAX_MODULES]
        groups = [line(module, times_ns) for module, times_ns in shown if module.modules > 1]
        singles = [line(module, times_ns) for module, times_ns in shown if module.modules == 1]
        headers = ["module", "calls", *columns, *(["% step"] if modules.per_step else [])]
        yield Sentence()
        yield Sentence(
            f"Modules: {unit.name} {'per step' if modules.per_step else 'over the whole run'}",
            "title",
        )
        yield table(headers, [groups, singles], wide_only=(NOTES,))
        if len(rows) > MAX_MODULES:
            more = counted(len(rows) - MAX_MODULES, "more row")
            yield Sentence(f"... and {more} (report --json --all-rows has all)", "warn")
        yield from _remarks(modules)

    def unknown(self, run: Run) -> Iterator[str]:
        if not run.modules:
            yield "Times of modules: they were not watched (run --modules)."


def _row(name: str, modules: int, found: ModulePerStep) -> ModuleMeans:
    calls = found.passes.get(ModulePass.FORWARD, NO_PASS)
    forward, backward, recompute = (found.passes.get(kind) for kind in ModulePass)
    return ModuleMeans(
        name=name,
        modules=modules,
        calls=None if calls is None else calls.count,
        forward_ns=None if forward is None else forward.host_ns,
        backward_ns=None if backward is None else backward.host_ns,
        recompute_ns=None if recompute is None else recompute.host_ns,
        device_forward_ns=None if forward is None else forward.device_ns,
        device_backward_ns=None if backward is None else backward.device_ns,
        device_recompute_ns=None if recompute is None else recompute.device_ns,
        share=found.share,
    )


MAX_MODULES = 200
"""Rows that the table shows at most."""

_RECOMPUTED = ("recompute", "device rec")


def _remarks(modules: ModulesSection) -> Iterator[Sentence]:
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
            f"Device times are known of {modules.timed_passes:,} of {modules.passes:,} passes; "
            "their mean stands for all"
        )


ASPECT = ModulesAspect()
