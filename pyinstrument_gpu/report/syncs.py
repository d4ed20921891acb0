# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says where the program waits for a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.sync_kind import SyncKind
from pyinstrument_gpu.model.syncs import Syncs, SyncSite
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, counted, table

_MAX_SITES = 20
_DOUBTS = {
    SyncKind.UNPLACED: (
        "tensors of the host meet tensors of the device, so the preview is wrong about some"
    ),
    SyncKind.PRESUMED: (
        "no tensor had been moved to a device, so those computed from parameters were taken to lie "
        "there"
    ),
}


def listed_sites(syncs: Syncs) -> list[SyncSite]:
    """The sites of waits outside `allow_sync` regions, the most expensive first."""
    sites = [site for site in syncs.sites if site.totals.count and not site.is_allowed]
    return sorted(sites, key=lambda s: (s.totals.blocked_ns, s.totals.count), reverse=True)


def allowed_sites(syncs: Syncs) -> list[SyncSite]:
    """The sites of waits inside `allow_sync` regions."""
    return [site for site in syncs.sites if site.is_allowed and site.kind not in _DOUBTS]


def waits_per_step(run: RunData, site: SyncSite) -> tuple[float | None, float | None]:
    """How often the host waits at a site per step, and for how long, of the waits inside steps
    alone; None where it is unknown."""
    inside = run.syncs.in_steps[site]
    steps = run.step_totals.count
    if inside is None or not steps:
        return None, None
    return inside.count / steps, None if inside.blocked_ns is None else inside.blocked_ns / steps


def syncs_section(run: RunData, width: int) -> Iterator[Text | Table]:
    """The sites, the most expensive first. Nothing if syncs were not watched."""
    syncs = run.syncs
    if not syncs.was_watched:
        return
    steps = run.step_totals.count
    sites = listed_sites(syncs)
    yield Text()
    if not sites:
        what = "would make" if syncs.is_as_if else "made"
        yield Text(f"Syncs: no watched call {what} the host wait for a device")
        yield from _doubts(run)
        return
    title = "Syncs: where the host waits for the device"
    if syncs.is_as_if:
        title = "Syncs: where the host would wait for a GPU (how long is unknown)"
    yield Text(title, "bold")
    largest_ns = max(site.totals.blocked_ns for site in sites)
    unit = Unit.fitting(largest_ns / max(1, steps), largest_ns)
    rows = []
    for site in sites[:_MAX_SITES]:
        blocked_ns = site.blocked_ns
        per_step, blocked_ns_per_step = waits_per_step(run, site)
        outside = None if per_step is None else site.totals.count - round(per_step * steps)
        cells = [
            site.kind.label,
            f"{site.totals.count:,}",
            UNKNOWN if per_step is None else f"{per_step:.2f}",
            unit.text(blocked_ns_per_step),
            UNKNOWN if outside is None else f"{outside:,}",
            unit.text(blocked_ns),
            f"{site.totals.bytes:,}",
        ]
        rows.append(Row(run.name_of_line(site.program), cells, note=site.function))
        if site.library is not None:
            # Below the program's line, and on a row of its own, so that both can be copied.
            nothing = [""] * len(cells)
            name = run.name_of_line(site.library)
            rows.append(Row(name, nothing, depth=1, note=site.library.function))
    times = (f"{unit.name} per step", "outside steps", f"total {unit.name}", "bytes")
    yield table(["line", "what", "count", "per step", *times], [rows], width, whole_names=True)
    if len(sites) > _MAX_SITES:
        yield Text(f"... and {counted(len(sites) - _MAX_SITES, 'more site')}", "yellow")
    closed = run.steps.closed
    watched = sum(
        int(np.count_nonzero((closed["begin_ns"] >= begin_ns) & (closed["end_ns"] <= end_ns)))
        for begin_ns, end_ns in syncs.watched_ns
    )
    if watched < len(closed):
        yield Text(
            f"The watch was on in {watched:,} of {counted(len(closed), 'step')}; what stands per "
            "step is a mean of all steps"
        )
    allowed = sum(site.totals.count for site in allowed_sites(syncs))
    if allowed:
        yield Text(f"In allow_sync regions: {counted(allowed, 'sync')}")
    if syncs.dropped:
        yield Text(f"Blocked times of phases are unknown: {syncs.dropped:,} waits were not kept")
    yield from _doubts(run)


def _doubts(run: RunData) -> Iterator[Text]:
    """What a preview could not know."""
    for kind, reason in _DOUBTS.items():
        sites = [site for site in run.syncs.sites if site.kind is kind and site.totals.count]
        if sites:
            first = run.name_of_line(sites[0].program)
            others = f" and {counted(len(sites) - 1, 'other line')}" if len(sites) > 1 else ""
            yield Text(f"Not certain: {reason}, at {first}{others}", "yellow")
