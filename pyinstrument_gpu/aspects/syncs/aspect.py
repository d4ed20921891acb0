# SPDX-License-Identifier: Apache-2.0
"""Waits for a device as an aspect of a run: how they are read, and what a report says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.syncs.live import LiveWaits
from pyinstrument_gpu.core.aspect import Aspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.program_facts import CHILDREN
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SomeWaits, Syncs, SyncSite
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, table
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, counted, duration, printable

_MOST_SITES = 20
_MOST_IN_SUMMARY = 8
_MOST_COSTS = 2

_DOUBTS = {
    SyncKind.UNPLACED: (
        "tensors of the host meet tensors of the device, or are trained while others lie there, so "
        "the preview may be wrong about some"
    ),
    SyncKind.PRESUMED: (
        "no tensor had been moved to a device, so those computed from parameters were taken to lie "
        "there"
    ),
    SyncKind.RAISES: (
        ".numpy() of a tensor on a GPU is an error, unless the program copies it to the host first"
    ),
}
_NO_WAITS = {SyncKind.UNPLACED, SyncKind.PRESUMED, SyncKind.UNFOLLOWED}
_MOST_CLASSES = 3
_NOTHING_PLACED = (
    "Not known: nothing that the program does places a tensor on a GPU, as far as the preview can "
    "see. For it to tell, move the model and its data with .to(device), where device is "
    '"cuda" if torch.cuda.is_available() else "cpu"'
)


_CHILDREN = (
    "Not known: what the child processes of the program would wait for, as a preview looks only at "
    "its own process"
)


@dataclass(frozen=True)
class SyncLine:
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
        is_of_steps: whether it waits in several steps, or in the only one, or between most of them;
            not where it waits once, or now and then between steps.
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
    is_of_steps: bool
    blocked_ns: int | None
    copied_bytes: int


@dataclass(frozen=True)
class SyncsSection:
    """The places where the program makes the host wait for a device.

    Attributes:
        is_preview: whether it ran without a GPU, as if it had one: no time is known, of nothing in
            the run.
        is_placed: false: a preview in which the program placed nothing on a device, so what would
            wait is not known.
        sites: the most expensive first; of a preview, those of steps first.
        kept_steps: steps in the history.
        watched_steps: how many of these were watched. What stands per step is a mean of all.
        allowed: waits in `allow_sync` regions, which are in no site.
        lost: waits that were not kept, so that blocked times of phases are unknown.
        not_followed: classes of tensors that a preview has met and not followed.
        doubts: what a preview could not know.
    """

    is_preview: bool
    is_placed: bool
    sites: tuple[SyncLine, ...]
    kept_steps: int
    watched_steps: int
    allowed: int
    lost: int
    not_followed: tuple[str, ...]
    doubts: tuple[str, ...]


class SyncsAspect(Aspect[Run, SyncsSection]):
    """The places where the program makes the host wait for a device."""

    name = "syncs"
    live = LiveWaits()
    heading = "Waits for the device"
    section_type = SyncsSection | None
    about = "where the host waits for a device."

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield waits for a device, as far as their time is known."""
        found, steps = run.syncs, run.steps.closed
        if not found.are_priced:
            return
        events = found.events[found.events["duration_ns"] >= 0]
        begins_ns = events["begin_ns"]
        yield Cause(
            name="device_wait",
            words="waiting for the device",
            remedy="see what the device does there: pyinstrument-gpu run --profile-steps 3 PROGRAM",
            precedence=Precedence.WAIT,
            intervals=intervals_of(
                begins_ns, begins_ns + events["duration_ns"], events["thread"], events["site"]
            ),
            known=steps["index"][found.are_known(steps["begin_ns"], steps["end_ns"])],
            notes=tuple(
                f"{one.kind.label} at {run.name_of_line(one.program)}" for one in found.sites
            ),
            is_advised=False,
        )

    def section(self, run: Run) -> SyncsSection | None:
        """Return the section; None if no syncs were watched."""
        found = run.syncs
        if not found.was_watched:
            return None
        closed, open_step = run.steps.closed, run.open_step
        in_steps = found.events["step"] >= 0
        has_ended = in_steps if open_step is None else found.events["step"] != open_step.index
        inside, ended = found.waits_in(in_steps), found.waits_in(in_steps & has_ended)
        of_steps = _sites_of_steps(run, found.events[~in_steps | has_ended])
        sites = [
            _site(run, site, inside[site], ended[site], site in of_steps)
            for site in listed_sites(found)
        ]
        return SyncsSection(
            is_preview=found.is_as_if,
            is_placed=found.is_placed,
            sites=tuple(
                sorted(sites, key=lambda site: not site.is_of_steps) if found.is_as_if else sites
            ),
            kept_steps=len(closed),
            watched_steps=sum(
                int(
                    np.count_nonzero(
                        (closed["begin_ns"] >= begin_ns) & (closed["end_ns"] <= end_ns)
                    )
                )
                for begin_ns, end_ns in found.watched_ns
            ),
            allowed=sum(
                site.totals.count
                for site in found.sites
                if site.is_allowed and site.kind not in _NO_WAITS
            ),
            lost=found.dropped,
            not_followed=tuple(_not_followed(run)),
            doubts=tuple(_doubts(run)),
        )

    def parts(self, syncs: SyncsSection, document: ReportedRun) -> Iterable[Part]:
        """The most expensive sites first; of a preview, those of steps first, without times."""
        yield Sentence()
        if not syncs.sites:
            if not syncs.is_preview:
                yield Sentence("Syncs: no watched call made the host wait for a device")
            elif syncs.is_placed:
                yield Sentence("Syncs: no watched call of this process would wait for a GPU")
            yield from (Sentence(doubt, "warn") for doubt in syncs.doubts)
            return
        title = "Syncs: where the host waits for the device"
        if syncs.is_preview:
            parameters = "" if syncs.is_placed else ", if the parameters were there"
            title = f"Syncs: where the host would wait for a GPU{parameters} (how long is unknown)"
        yield Sentence(title, "title")
        largest_ns = max(site.blocked_ns or 0 for site in syncs.sites)
        unit = Unit.fitting(largest_ns / max(1, document.step_count), largest_ns)
        times = 0 if syncs.is_preview else 1
        columns = ["line", "what", "count", "per step", *[f"{unit.name} per step"] * times]
        columns += ["outside steps", *[f"total {unit.name}"] * times, "bytes"]
        of_steps: list[Row] = []
        others: list[Row] = []
        for site in syncs.sites[:_MOST_SITES]:
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
                rows.append(
                    Row(site.library_line, nothing, depth=1, note=site.library_function or "")
                )
        yield table(columns, [of_steps, others], whole_names=True)
        if of_steps and others:
            yield Sentence("Below the line: what would wait once, or outside steps")
        if len(syncs.sites) > _MOST_SITES:
            yield Sentence(
                f"... and {counted(len(syncs.sites) - _MOST_SITES, 'more site')}", "warn"
            )
        if syncs.watched_steps < syncs.kept_steps:
            yield Sentence(
                f"The watch was on in {syncs.watched_steps:,} of "
                f"{counted(syncs.kept_steps, 'step')}; numbers per step are means of all steps"
            )
        if syncs.allowed:
            yield Sentence(f"In allow_sync regions: {counted(syncs.allowed, 'sync')}")
        if syncs.lost:
            yield Sentence(
                f"Blocked times of phases are unknown: {syncs.lost:,} waits were not kept"
            )
        yield from (Sentence(doubt, "warn") for doubt in syncs.doubts)

    def summary(self, syncs: SyncsSection, document: ReportedRun) -> Iterable[Part]:
        """The lines that cost most; of a preview, those that would wait, as that is what it is
        for."""
        if syncs.is_preview:
            # What a line calls may wait at several lines of a library.
            calls: dict[tuple[str, str], list[SyncLine]] = {}
            for site in syncs.sites:
                calls.setdefault((site.line, site.what), []).append(site)
            rows = []
            for (line, what), sites in [*calls.items()][:_MOST_IN_SUMMARY]:
                counts = [site.count_per_step for site in sites]
                per_step = UNKNOWN if None in counts else f"{sum(filter(None, counts)):.2f}"
                is_of_steps = any(site.is_of_steps for site in sites)
                rows.append(Row(line, [what, per_step, "steps" if is_of_steps else "once"]))
            if rows:
                headers = ["would wait for a GPU", "call", "per step", "in"]
                yield table(headers, [rows], whole_names=True)
            yield from (Sentence(doubt, "warn") for doubt in syncs.doubts)
            return
        costs = [
            f"{site.what} at {site.line} ({duration(site.blocked_ns_per_step)} per step)"
            for site in syncs.sites
            if site.is_of_steps and site.blocked_ns_per_step
        ]
        if costs:
            more = len(costs) - _MOST_COSTS
            others = [f"and {counted(more, 'other line')}"] if more > 0 else []
            yield Sentence(printable(f"Syncs: {', '.join([*costs[:_MOST_COSTS], *others])}"))

    def verdict(self, syncs: SyncsSection) -> str | None:
        return preview_verdict(syncs) if syncs.is_preview else None

    def lines(self, run: Run) -> Iterator[tuple[str, SourceLine]]:
        for site in listed_sites(run.syncs)[:_MOST_SITES]:
            for line in (site.program, site.library):
                if line is not None:
                    at = run.name_of_line(line)
                    yield f"{site.kind.label} at {at}, in {line.function}", line

    def unknown(self, run: Run) -> Iterator[str]:
        if not run.syncs.was_watched:
            # What was known of the watch may be in the part of the file that is missing.
            watched = (
                "syncs were not watched" if run.complete else "the file has no record of a watch"
            )
            yield f"Where the host waits for the device: {watched} (pig.watch_syncs())."
        elif run.syncs.is_as_if:
            unknown = "How long the host waits for a device, and all other times"
            yield f"{unknown}: the run was a preview."


def _sites_of_steps(run: Run, events: NDArray[np.void]) -> set[SyncSite]:
    """The sites that wait in several of the steps that ended, or in the only one, or between most
    of them, as where the training draws from an environment."""
    is_inside = events["step"] >= 0
    steps = _places_of(events["site"][is_inside], events["step"][is_inside], run)
    ends_ns = run.steps.closed["end_ns"]
    gaps = np.searchsorted(ends_ns, events["begin_ns"][~is_inside], "right")
    between = _places_of(events["site"][~is_inside], gaps, run)
    are_of_steps = (steps >= min(2, run.steps_ended)) & (steps > 0)
    are_of_steps |= between > max(1, len(ends_ns) / 2)
    return {run.syncs.sites[site] for site in np.flatnonzero(are_of_steps)}


def _places_of(
    sites: NDArray[np.integer[Any]], places: NDArray[np.integer[Any]], run: Run
) -> NDArray[np.int64]:
    """Return at how many different places each of the run's sites is."""
    pairs = np.unique(np.stack([sites, places.astype(np.int64)]), axis=1)
    return np.bincount(pairs[0], minlength=len(run.syncs.sites))


def listed_sites(syncs: Syncs) -> list[SyncSite]:
    """The sites of waits outside `allow_sync` regions, the most expensive first."""
    sites = [site for site in syncs.sites if site.totals.count and not site.is_allowed]
    return sorted(sites, key=lambda s: (s.totals.blocked_ns, s.totals.count), reverse=True)


def _site(
    run: Run,
    site: SyncSite,
    inside: SomeWaits | None,
    ended: SomeWaits | None,
    is_of_steps: bool,
) -> SyncLine:
    """The site; `inside` are its waits inside steps, `ended` those inside steps that ended."""
    library, steps = site.library, run.steps_ended
    if not steps:
        inside = ended = None
    blocked_ns = None if ended is None else ended.blocked_ns
    return SyncLine(
        line=run.name_of_line(site.program),
        function=site.function,
        library_line=None if library is None else run.name_of_line(library),
        library_function=None if library is None else library.function,
        what=site.kind.label,
        count=site.totals.count,
        count_per_step=None if ended is None else ended.count / steps,
        blocked_ns_per_step=None if blocked_ns is None else blocked_ns / steps,
        count_outside=None if inside is None else site.totals.count - round(inside.count),
        is_of_steps=is_of_steps,
        blocked_ns=site.blocked_ns,
        copied_bytes=site.totals.bytes,
    )


def _not_followed(run: Run) -> list[str]:
    """Return the classes of tensors that were not followed, each once."""
    sites = (site for site in run.syncs.sites if site.totals.count)
    return [*dict.fromkeys(site.function for site in sites if site.kind is SyncKind.UNFOLLOWED)]


def _classes(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_CLASSES:,} more"] if len(names) > _MOST_CLASSES else []
    which = ", ".join([*names[:_MOST_CLASSES], *more])
    return f"tensors of {'class' if len(names) == 1 else 'the classes'} {printable(which)}"


def _doubts(run: Run) -> Iterator[str]:
    if run.syncs.is_as_if and not run.steps_ended and run.environment.get(CHILDREN, 0.0) > 0:
        yield _CHILDREN
    elif not run.syncs.is_placed:
        yield _NOTHING_PLACED
    doubts = dict(_DOUBTS)
    if names := _not_followed(run):
        doubts[SyncKind.UNFOLLOWED] = f"{_classes(names)} were not followed"
    for kind, reason in doubts.items():
        sites = [site for site in run.syncs.sites if site.kind is kind and site.totals.count]
        if sites:
            first = run.name_of_line(sites[0].program)
            others = f" and {counted(len(sites) - 1, 'other line')}" if len(sites) > 1 else ""
            yield f"Not certain: {reason}, at {first}{others}"


def preview_verdict(syncs: SyncsSection) -> str:
    """Return what a preview says, in a sentence."""
    if not syncs.is_placed:
        where = "where it would wait for a GPU is not known"
        return f"A preview on the host: the program places nothing on a device, so {where}."
    of_steps = {site.line for site in syncs.sites if site.is_of_steps}
    others = {site.line for site in syncs.sites} - of_steps
    would = "no line of its steps was found that would make it wait for a GPU"
    if of_steps:
        lines = counted(len(of_steps), "line")
        would = f"{lines} of its steps would make it wait for a GPU, how long is unknown"
    elif syncs.not_followed:
        would = f"it did not follow {_classes(syncs.not_followed)}, so where its steps would wait "
        would += "for a GPU is not known"
    once = f"; {counted(len(others), 'other line')} would once, or outside steps" if others else ""
    doubts = "; not all of this is certain" if syncs.doubts else ""
    return f"A preview on the host: {would}{once}{doubts}."


ASPECT = SyncsAspect()
