# SPDX-License-Identifier: Apache-2.0
"""The syncs of a run: where the program made the host wait for a device, and for how long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields, distinct
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.sync_kind import SyncKind

SYNC_DTYPE = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("bytes", "<u8"),
        ("site", "<u4"),
        ("path", "<i8"),
        ("step", "<i8"),
        ("thread", "<u4"),
    ]
)
"""One wait. `site` indexes `Syncs.sites`; `path`, `step` and `thread` are as in a span.
`duration_ns` is -1 where the price is unknown."""


@dataclass(frozen=True)
class SyncTotals:
    """Sums over all waits of a site, those included whose history was not kept.

    Attributes:
        count: number of waits.
        priced: number of those whose time is known.
        blocked_ns: their time.
        bytes: bytes copied, of all.
    """

    count: int = 0
    priced: int = 0
    blocked_ns: int = 0
    bytes: int = 0

    def __add__(self, other: SyncTotals) -> SyncTotals:
        return SyncTotals(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class SyncSite:
    """A place in the program that makes the host wait.

    Attributes:
        file: path of the source file.
        line: line in it.
        function: name of the function.
        kind: what waits there.
        is_allowed: whether it is in an `allow_sync` region.
        totals: over the whole run.
        library: the line that waits, if it is one of a library that the program's line called.
    """

    file: str
    line: int
    function: str
    kind: SyncKind
    is_allowed: bool
    totals: SyncTotals = SyncTotals()
    library: SourceLine | None = None

    @property
    def program(self) -> SourceLine:
        """The line of the program."""
        return SourceLine(self.file, self.line, self.function)

    @property
    def blocked_ns(self) -> int | None:
        """Time waited here; None when no price is known."""
        return self.totals.blocked_ns if self.totals.priced else None


@dataclass(frozen=True)
class SomeWaits:
    """A part of the waits of a site.

    Attributes:
        count: their number.
        blocked_ns: their time; None when no price is known.
    """

    count: float
    blocked_ns: float | None


@dataclass(frozen=True, eq=False)
class Syncs(ArrayFields):
    """The syncs of a run.

    Attributes:
        sites: the places, in order of first appearance.
        events: the waits one by one (`SYNC_DTYPE`), in order of their ends per thread. History:
            the oldest may be gone.
        watched_ns: when the watch was on, as begins and ends in ns since the run began.
        is_as_if: whether calls on tensors of the host were counted as if they lay on a device.
        is_placed: false where they were, and nothing was placed on a device.
        dropped: waits that are missing from `events`.
    """

    sites: tuple[SyncSite, ...] = ()
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, SYNC_DTYPE))
    watched_ns: tuple[tuple[int, int], ...] = ()
    is_as_if: bool = False
    is_placed: bool = True
    dropped: int = 0

    @property
    def are_priced(self) -> bool:
        """True if the run says how long the host waited: false for a preview."""
        return self.was_watched and not self.is_as_if

    @property
    def was_watched(self) -> bool:
        """True if the watch was on at any time."""
        return bool(self.watched_ns)

    @property
    def total(self) -> SyncTotals:
        """The sums over all sites that are not allowed."""
        parts = (site.totals for site in self.sites if not site.is_allowed)
        return sum(parts, SyncTotals())

    def waits_in(self, chosen: NDArray[np.bool_]) -> dict[SyncSite, SomeWaits | None]:
        """Return for each site its waits among the chosen `events`. Where only a part of the
        history was kept, this part stands for the whole; None where nothing of it was."""
        kept = totals_of(self.events, len(self.sites))
        wanted = totals_of(self.events[chosen], len(self.sites))
        found: dict[SyncSite, SomeWaits | None] = {}
        for site, all_kept, some in zip(self.sites, kept, wanted, strict=True):
            if not all_kept.count:
                found[site] = None
                continue
            share = some.count / all_kept.count
            blocked_ns: float | None = None
            if all_kept.blocked_ns:
                blocked_ns = site.totals.blocked_ns * (some.blocked_ns / all_kept.blocked_ns)
            elif site.totals.priced:
                blocked_ns = site.totals.blocked_ns * share
            found[site] = SomeWaits(site.totals.count * share, blocked_ns)
        return found

    def are_of(self, kinds: Collection[SyncKind]) -> NDArray[np.bool_]:
        """Return for each site whether it is of one of the kinds."""
        return np.array([site.kind in kinds for site in self.sites], dtype=bool)

    def of_kinds(self, events: NDArray[np.void], kinds: Collection[SyncKind]) -> NDArray[np.bool_]:
        """Return for each event whether it is of one of the kinds."""
        found: NDArray[np.bool_] = np.append(self.are_of(kinds), False)[events["site"]]
        return found

    def is_allowed(self, events: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return for each event whether it lies in an `allow_sync` region."""
        allowed = np.array([site.is_allowed for site in self.sites], dtype=bool)
        result: NDArray[np.bool_] = (
            allowed[events["site"]] if len(self.sites) else events["site"] < 0
        )
        return result

    def are_known(
        self, begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return for each time whether all waits in it are in `events`."""
        known = np.zeros(len(begins_ns), dtype=bool)
        for begin_ns, end_ns in () if self.dropped else self.watched_ns:
            known |= (begins_ns >= begin_ns) & (ends_ns <= end_ns)
        return known


def blocked_ns(spans: NDArray[np.void], syncs: Syncs) -> NDArray[np.int64]:
    """Return for each span the time that its thread waited inside it; -1 where the watch was not on
    for the whole span, or waits may be missing from the history."""
    blocked = np.full(len(spans), -1, np.int64)
    begins_ns, ends_ns = spans["host_begin_ns"], spans["host_end_ns"]
    watched = syncs.are_known(begins_ns, ends_ns)
    events = syncs.events[syncs.events["duration_ns"] >= 0]
    for thread in distinct(spans["thread"][watched]):
        chosen = watched & (spans["thread"] == thread)
        of_thread = events[events["thread"] == thread]
        # Of a thread the waits do not overlap: those inside a span are neighbours.
        order = np.argsort(of_thread["begin_ns"], kind="stable")
        sums_ns = np.append(0, np.cumsum(of_thread["duration_ns"][order]))
        moments_ns = of_thread["begin_ns"][order]
        first = np.searchsorted(moments_ns, begins_ns[chosen])
        last = np.searchsorted(moments_ns, ends_ns[chosen])
        blocked[chosen] = np.minimum(
            sums_ns[last] - sums_ns[first], ends_ns[chosen] - begins_ns[chosen]
        )
    return blocked


def totals_of(events: NDArray[np.void], sites: int) -> list[SyncTotals]:
    """The sums of some events by site."""
    priced = events[events["duration_ns"] >= 0]
    columns = (
        np.bincount(events["site"], minlength=sites),
        np.bincount(priced["site"], minlength=sites),
        np.bincount(priced["site"], priced["duration_ns"], minlength=sites),
        np.bincount(events["site"], events["bytes"], minlength=sites),
    )
    return [SyncTotals(*map(int, row)) for row in zip(*columns, strict=True)]
