# SPDX-License-Identifier: Apache-2.0
"""Lines of the program that make the host wait for a device, as `watch` shows them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from pyinstrument_gpu.core.live import LiveView, LiveWindow
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.choice import Choice, Sorts, sparkline
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, Unit

_SORTS: Sorts = {
    "time": lambda wait: (-(wait["blocked_ns"] or 0), wait["line"]),
    "now": lambda wait: (-(wait["window_per_step_ns"] or 0), wait["line"]),
    "count": lambda wait: (-wait["count"], wait["line"]),
    "line": itemgetter("line"),
}


class LiveWaits(LiveView[Run, tuple[dict[str, Any], ...]]):
    """Waits by line."""

    key = "waits"
    place = 2
    tab = "Waits"
    sorts = _SORTS

    def look(self, run: Run, window: LiveWindow) -> tuple[dict[str, Any], ...] | None:
        if not run.syncs.was_watched:
            return None
        waits = _waits(run, window)
        return tuple(sorted(waits, key=lambda wait: (-(wait["blocked_ns"] or 0), -wait["count"])))

    def parts(self, seen: tuple[dict[str, Any], ...] | None, choice: Choice) -> list[Part]:
        if seen is None:
            how = "`pyinstrument-gpu run` or pig.watch_syncs()"
            return [Sentence(f"nobody watches for waits here: {how}")]
        if not seen:
            return [Sentence("no line has made the host wait for the GPU so far")]
        unit = Unit.fitting(max(wait["window_per_step_ns"] or 0 for wait in seen) or 1e6)
        rows = []
        for wait in choice.of(seen, itemgetter("line"), self.sorts):
            total_ns = wait["blocked_ns"]
            total_s = UNKNOWN if total_ns is None else f"{total_ns / 1e9:,.2f}"
            counts = f"{wait['count']:,}", f"+{wait['window_count']:,}"
            kind = wait["kind"] + (" (allowed)" if wait["is_allowed"] else "")
            course = [sparkline(wait["series_ns"][-12:])] if wait["series_ns"] else []
            cells = [unit.text(wait["window_per_step_ns"]), total_s, *counts]
            rows.append(Row(wait["line"], cells, note="  ".join([*course, kind])))
        headers = ["line", f"{unit.name}/step", "total s", "waits", "window"]
        return choice.table(headers, rows, whole_names=True)


def _waits(run: Run, window: LiveWindow) -> Iterator[dict[str, Any]]:
    syncs = run.syncs
    events = syncs.events[syncs.events["begin_ns"] >= window.begin_ns]
    places = window.places_of(events["step"])
    for number, site in enumerate(syncs.sites):
        if not site.totals.count:
            continue
        of_site = events["site"] == number
        priced = of_site & (events["duration_ns"] >= 0)
        in_step = priced & (places >= 0)
        is_priced = site.totals.priced > 0
        blocked_ns = int(events["duration_ns"][priced].sum())
        in_steps_ns = events["duration_ns"][in_step]
        yield {
            "line": run.name_of_line(site.program),
            "function": site.function,
            "kind": site.kind.label,
            "is_allowed": site.is_allowed,
            "count": site.totals.count,
            "blocked_ns": site.blocked_ns,
            "window_count": int(of_site.sum()),
            "window_blocked_ns": blocked_ns if is_priced else None,
            "window_per_step_ns": window.per_step(int(in_steps_ns.sum())) if is_priced else None,
            "series_ns": window.series_of(places[in_step], in_steps_ns) if is_priced else (),
        }
