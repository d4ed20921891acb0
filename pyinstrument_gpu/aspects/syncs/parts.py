# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says where the program waits for a device."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.aspects.syncs.section import Syncs
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted

_MAX_SITES = 20


def syncs_section(syncs: Syncs | None, steps: int) -> Iterator[Part]:
    """The sites, the most expensive first, of a run of so many steps; of a preview, those of steps
    first, without times. Nothing if syncs were not watched."""
    if syncs is None:
        return
    yield Sentence()
    if not syncs.sites:
        if not syncs.is_preview:
            yield Sentence("Syncs: no watched call made the host wait for a device")
        elif syncs.is_placed:
            yield Sentence("Syncs: no watched call of this process would wait for a GPU")
        yield from _doubts(syncs)
        return
    title = "Syncs: where the host waits for the device"
    if syncs.is_preview:
        parameters = "" if syncs.is_placed else ", if the parameters were there"
        title = f"Syncs: where the host would wait for a GPU{parameters} (how long is unknown)"
    yield Sentence(title, "title")
    largest_ns = max(site.blocked_ns or 0 for site in syncs.sites)
    unit = Unit.fitting(largest_ns / max(1, steps), largest_ns)
    times = 0 if syncs.is_preview else 1
    columns = ["line", "what", "count", "per step", *[f"{unit.name} per step"] * times]
    columns += ["outside steps", *[f"total {unit.name}"] * times, "bytes"]
    of_steps: list[Row] = []
    others: list[Row] = []
    for site in syncs.sites[:_MAX_SITES]:
        rows = others if syncs.is_preview and not site.is_of_steps else of_steps
        cells = [
            site.what,
            f"{site.count:,}",
            UNKNOWN if site.count_per_step is None else f"{site.count_per_step:.2f}",
            *[unit.text(site.blocked_ns_per_step)] * times,
            UNKNOWN if site.count_outside is None else f"{site.count_outside:,}",
            *[unit.text(site.blocked_ns)] * times,
            f"{site.copied_bytes:,}",
        ]
        rows.append(Row(site.line, cells, note=site.function))
        if site.library_line is not None:
            # Below the program's line, and on a row of its own, so that both can be copied.
            nothing = [""] * len(cells)
            rows.append(Row(site.library_line, nothing, depth=1, note=site.library_function or ""))
    yield table(columns, [of_steps, others], whole_names=True)
    if of_steps and others:
        yield Sentence("Below the line: what would wait once, or outside steps")
    if len(syncs.sites) > _MAX_SITES:
        yield Sentence(f"... and {counted(len(syncs.sites) - _MAX_SITES, 'more site')}", "warn")
    if syncs.watched_steps < syncs.kept_steps:
        yield Sentence(
            f"The watch was on in {syncs.watched_steps:,} of {counted(syncs.kept_steps, 'step')}; "
            "what stands per step is a mean of all steps"
        )
    if syncs.allowed:
        yield Sentence(f"In allow_sync regions: {counted(syncs.allowed, 'sync')}")
    if syncs.lost:
        yield Sentence(f"Blocked times of phases are unknown: {syncs.lost:,} waits were not kept")
    yield from _doubts(syncs)


def _doubts(syncs: Syncs) -> Iterator[Sentence]:
    for doubt in syncs.doubts:
        yield Sentence(doubt, "warn")
