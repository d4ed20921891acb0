# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says where the program waits for a device."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.syncs import Syncs, SyncSite
from pyinstrument_gpu.report.table import UNKNOWN, Row, Unit, counted, shortened, table

_MAX_SITES = 20


def listed_sites(syncs: Syncs) -> list[SyncSite]:
    """The sites of waits outside `allow_sync` regions, the most expensive first."""
    sites = [site for site in syncs.sites if site.totals.count and not site.is_allowed]
    return sorted(sites, key=lambda s: (s.totals.blocked_ns, s.totals.count), reverse=True)


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
        return
    title = "Syncs: where the host waits for the device"
    if syncs.is_as_if:
        title = "Syncs: where the host would wait for a GPU (how long is unknown)"
    yield Text(title, "bold")
    per_step = max(1, steps)
    unit = Unit.fitting(max(site.totals.blocked_ns for site in sites) / per_step)
    rows = []
    for site in sites[:_MAX_SITES]:
        blocked_ns = site.blocked_ns
        cells = [
            site.kind.label,
            f"{site.totals.count:,}",
            f"{site.totals.count / steps:.2f}" if steps else UNKNOWN,
            unit.text(None if blocked_ns is None or not steps else blocked_ns / steps),
            UNKNOWN if blocked_ns is None else f"{blocked_ns / 1e9:.3f}",
            f"{site.totals.bytes:,}",
        ]
        rows.append(Row(f"{shortened(site.file)}:{site.line}", cells, note=site.function))
    headers = ["line", "what", "count", "per step", f"{unit.name} per step", "total s", "bytes"]
    yield table(headers, [rows], width)
    if len(sites) > _MAX_SITES:
        yield Text(f"... and {counted(len(sites) - _MAX_SITES, 'more site')}", "yellow")
    allowed = sum(site.totals.count for site in syncs.sites if site.is_allowed)
    if allowed:
        yield Text(f"In allow_sync regions: {counted(allowed, 'sync')}")
    if syncs.dropped:
        yield Text(f"Blocked times of phases are unknown: {syncs.dropped:,} waits were not kept")
