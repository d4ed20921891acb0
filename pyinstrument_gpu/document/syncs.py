# SPDX-License-Identifier: Apache-2.0
"""The section on syncs: where the program waits for a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu.document.words import counted
from pyinstrument_gpu.model import syncs as model
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.sync_kind import SyncKind

_DOUBTS = {
    SyncKind.UNPLACED: (
        "tensors of the host meet tensors of the device, so the preview is wrong about some"
    ),
    SyncKind.PRESUMED: (
        "no tensor had been moved to a device, so those computed from parameters were taken to lie "
        "there"
    ),
}


@dataclass(frozen=True)
class SyncSite:
    """A line of the program that makes the host wait for a device.

    Attributes:
        line: as file:line.
        function: the function it is in.
        library_line, library_function: the line of a library that waits, where the program's line
            called one.
        what: the call that waits.
        count: waits in the whole run.
        count_per_step, blocked_ns_per_step: of those inside steps that ended.
        count_outside: waits outside steps.
        blocked_ns: the time of all.
        copied_bytes: what they copied.
    """

    line: str
    function: str
    library_line: str | None
    library_function: str | None
    what: str
    count: int
    count_per_step: float | None
    blocked_ns_per_step: float | None
    count_outside: int | None
    blocked_ns: int | None
    copied_bytes: int


@dataclass(frozen=True)
class Syncs:
    """Where the program makes the host wait for a device.

    Attributes:
        is_preview: whether it ran without a GPU, as if it had one: no time is known.
        sites: the most expensive first.
        kept_steps: steps in the history.
        watched_steps: how many of these were watched. What stands per step is a mean of all.
        allowed: waits in `allow_sync` regions, which are in no site.
        lost: waits that were not kept, so that blocked times of phases are unknown.
        doubts: what a preview could not know.
    """

    is_preview: bool
    sites: tuple[SyncSite, ...]
    kept_steps: int
    watched_steps: int
    allowed: int
    lost: int
    doubts: tuple[str, ...]


def syncs(run: RunData) -> Syncs | None:
    """None if no syncs were watched."""
    found = run.syncs
    if not found.was_watched:
        return None
    closed, open_step = run.steps.closed, run.open_step
    in_steps = found.events["step"] >= 0
    has_ended = in_steps if open_step is None else found.events["step"] != open_step.index
    inside, ended = found.waits_in(in_steps), found.waits_in(in_steps & has_ended)
    return Syncs(
        is_preview=found.is_as_if,
        sites=tuple(_site(run, site, inside[site], ended[site]) for site in listed_sites(found)),
        kept_steps=len(closed),
        watched_steps=sum(
            int(np.count_nonzero((closed["begin_ns"] >= begin_ns) & (closed["end_ns"] <= end_ns)))
            for begin_ns, end_ns in found.watched_ns
        ),
        allowed=sum(
            site.totals.count
            for site in found.sites
            if site.is_allowed and site.kind not in _DOUBTS
        ),
        lost=found.dropped,
        doubts=tuple(_doubts(run)),
    )


def listed_sites(syncs: model.Syncs) -> list[model.SyncSite]:
    """The sites of waits outside `allow_sync` regions, the most expensive first."""
    sites = [site for site in syncs.sites if site.totals.count and not site.is_allowed]
    return sorted(sites, key=lambda s: (s.totals.blocked_ns, s.totals.count), reverse=True)


def _site(
    run: RunData,
    site: model.SyncSite,
    inside: model.SomeWaits | None,
    ended: model.SomeWaits | None,
) -> SyncSite:
    """The site; `inside` are its waits inside steps, `ended` those inside steps that ended."""
    library, steps = site.library, run.steps_ended
    if not steps:
        inside = ended = None
    blocked_ns = None if ended is None else ended.blocked_ns
    return SyncSite(
        line=run.name_of_line(site.program),
        function=site.function,
        library_line=None if library is None else run.name_of_line(library),
        library_function=None if library is None else library.function,
        what=site.kind.label,
        count=site.totals.count,
        count_per_step=None if ended is None else ended.count / steps,
        blocked_ns_per_step=None if blocked_ns is None else blocked_ns / steps,
        count_outside=None if inside is None else site.totals.count - round(inside.count),
        blocked_ns=site.blocked_ns,
        copied_bytes=site.totals.bytes,
    )


def _doubts(run: RunData) -> Iterator[str]:
    for kind, reason in _DOUBTS.items():
        sites = [site for site in run.syncs.sites if site.kind is kind and site.totals.count]
        if sites:
            first = run.name_of_line(sites[0].program)
            others = f" and {counted(len(sites) - 1, 'other line')}" if len(sites) > 1 else ""
            yield f"Not certain: {reason}, at {first}{others}"
