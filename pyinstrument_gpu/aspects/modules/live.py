# SPDX-License-Identifier: Apache-2.0
"""The modules of the model as `watch` shows them, those that differ by an index alone as one."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.live import LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import known_mean_ns
from pyinstrument_gpu.parts.choice import Choice, Sorts, as_recorded
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import Unit, counted


def _window_ns(one: dict[str, Any]) -> float:
    times_ns = one["window_forward_per_step_ns"], one["window_backward_per_step_ns"]
    return sum(time_ns or 0 for time_ns in times_ns)


_SORTS: Sorts = {
    "time": lambda one: -_window_ns(one),
    "first": as_recorded,
    "name": itemgetter("name"),
}


class LiveModules(LiveView[Run, tuple[dict[str, Any], ...]]):
    """The times of modules, forward and backward."""

    key = "modules"
    place = 5
    tab = "Modules"
    sorts = _SORTS

    def look(self, run: Run, window: LiveWindow) -> tuple[dict[str, Any], ...]:
        row_of = {
            member: row
            for row, name in enumerate(run.modules)
            for member in run.modules.of_group(name)
        }
        rows = np.array([row_of.get(name, -1) for name in run.module_names], np.int64)
        places = window.places_of(run.module_spans["step"])
        passes = run.module_spans[places >= 0]
        # Modules may be timed in some of the steps only.
        steps = len(np.unique(places[places >= 0]))
        times_ns = durations_ns_of(passes, "host_")
        per_step_ns = {}
        for kind in (ModulePass.FORWARD, ModulePass.BACKWARD):
            chosen = (passes["kind"] == kind) & (rows[passes["module"]] >= 0)
            of_rows = rows[passes["module"][chosen]]
            sums_ns = np.bincount(of_rows, times_ns[chosen], len(run.modules)).tolist()
            per_step_ns[kind] = [ns / steps if steps else None for ns in sums_ns]
        return tuple(
            {
                "name": times.name,
                "modules": times.modules,
                "calls": times.calls,
                "forward_mean_ns": known_mean_ns(times.forward),
                "backward_mean_ns": known_mean_ns(times.backward),
                "window_forward_per_step_ns": per_step_ns[ModulePass.FORWARD][row],
                "window_backward_per_step_ns": per_step_ns[ModulePass.BACKWARD][row],
            }
            for row, times in enumerate(run.modules.values())
        )

    def parts(self, seen: tuple[dict[str, Any], ...], choice: Choice) -> list[Part]:
        if not seen:
            return [Sentence("modules are not watched: `pyinstrument-gpu run --modules`")]
        unit = Unit.fitting(max(map(_window_ns, seen)) or 1e6)
        longest_ns = max(one["forward_mean_ns"] or one["backward_mean_ns"] or 0 for one in seen)
        call_unit = Unit.fitting(longest_ns)
        rows = []
        for one in choice.of(seen, itemgetter("name"), self.sorts):
            now_ns = one["window_forward_per_step_ns"], one["window_backward_per_step_ns"]
            means_ns = one["forward_mean_ns"], one["backward_mean_ns"]
            cells = [*map(unit.text, now_ns), *map(call_unit.text, means_ns)]
            of = f" of {one['modules']} modules" if one["modules"] > 1 else ""
            note = counted(one["calls"], "call") + of
            rows.append(Row(one["name"] or "(the model)", cells, note=note))
        run_unit = f"{call_unit.name} a call"
        headers = [f"{unit.name} per step", "forward", "backward", run_unit, "backward"]
        return choice.table(headers, rows)
