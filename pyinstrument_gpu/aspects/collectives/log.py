# SPDX-License-Identifier: Apache-2.0
"""Collective operations on their way from PyTorch's flight recorder to the run file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pyinstrument_gpu.aspects.collectives.flight_recorder import Entry

MOST_GROUPS = 1024
MOST_OPERATIONS = 1024
MOST_RANKS = 1 << 16
"""So many ranks are written, of all groups together."""

_ITEM = struct.Struct("<6qIHH")
_P2P = 1
_WAIT = 2
_MOST_CHARACTERS = 200
_LARGEST = (1 << 62) - 1
_LATEST_NS = (1 << 61) - 1
_LARGEST_SLEW = 1e-3
"""So much the wall clock may be slower or faster than the run's; what is more is a step of it."""
_LARGEST_SLEW_NS = 1_000_000


class Clocks(NamedTuple):
    """The run's clock and that of the wall, read together, in ns."""

    run_ns: int
    wall_ns: int

    @property
    def offset_ns(self) -> int:
        return self.run_ns - self.wall_ns


def wait_item(began_ns: int, ended_ns: int, is_p2p: bool) -> bytes:
    """Return the item of a time in which the host waited for an operation."""
    return _ITEM.pack(began_ns, -1, ended_ns, -1, 0, -1, 0, 0, _WAIT | (_P2P if is_p2p else 0))


class CollectiveLog:
    """Takes what is in the flight recorder again and again, and makes items for the run file of
    what is new.

    Args:
        began: the clocks when the recording began; what was created before does not count.
        members: the ranks that are in a group, by its name; None unknown.

    Attributes:
        missed: how many operations had left the flight recorder before they were seen, and those
            that were seen and are not in the run for another reason.
    """

    ITEM_BYTES = _ITEM.size

    def __init__(self, began: Clocks, members: Callable[[str], tuple[int, ...] | None]) -> None:
        self._clocks = began
        self._members = members
        self._next: int | None = None  # the first record that was not seen
        self._waiting: dict[int, bytes] = {}  # seen before its end, by its record
        self._groups: dict[tuple[str, str], int] = {}
        self._group_facts: list[dict[str, Any]] = []
        self._ranks_left = MOST_RANKS
        self._operations: dict[str, int] = {}
        self.missed = 0

    def add(self, entries: list[Entry], clocks: Clocks, with_unended: bool = False) -> bytes:
        """Return the items of what is new.

        Args:
            entries: all that are in the ring, by record.
            clocks: as they were when it was read.
            with_unended: take also those whose end may still be seen.
        """
        to_run_ns = self._conversion(clocks)
        self._clocks = clocks
        items: list[tuple[int, bytes]] = []
        in_ring = {entry.record for entry in entries}
        for record in [one for one in self._waiting if one not in in_ring]:
            items.append((record, self._waiting.pop(record)))
        for entry in self._new(entries, to_run_ns):
            item = self._item(entry, to_run_ns)
            self._waiting.pop(entry.record, None)
            if item is None:
                self.missed += 1
            elif entry.is_done or with_unended:
                items.append((entry.record, item))
            else:
                self._waiting[entry.record] = item
        return b"".join(item for _, item in sorted(items))

    def facts(self) -> dict[str, Any]:
        """Return the groups and operations as the document has them."""
        return {
            "groups": [*self._group_facts],
            "operations": list(self._operations),
            "missed": self.missed,
        }

    def _new(self, entries: list[Entry], to_run_ns: Callable[[int | None], int]) -> Iterator[Entry]:
        """Yield the entries that are new, or whose end was waited for."""
        if not entries:
            return
        first, end = entries[0].record, entries[-1].record + 1
        if self._next is None:
            old = [entry.record for entry in entries if to_run_ns(entry.created_ns) < 0]
            self._next = old[-1] + 1 if old else 0
        elif end < self._next:  # torch counts from the beginning again
            self._next = first
        self.missed += max(0, first - self._next)
        for entry in entries:
            if entry.record in self._waiting or entry.record >= self._next:
                yield entry
        self._next = end

    def _conversion(self, now: Clocks) -> Callable[[int | None], int]:
        """Return a conversion from the wall's clock to the run's, -1 for what is unknown: between
        the last reading of both and this one, in the same proportion."""
        before = self._clocks
        elapsed_ns = now.wall_ns - before.wall_ns
        drift_ns = now.offset_ns - before.offset_ns
        is_step = abs(drift_ns) > _LARGEST_SLEW_NS + _LARGEST_SLEW * max(0, elapsed_ns)
        slope = drift_ns / elapsed_ns if elapsed_ns > 0 else 0.0

        def to_run_ns(wall_ns: int | None) -> int:
            # Where somebody has set the clock, none knows on which side of that.
            if wall_ns is None or is_step:
                return -1
            # Not beyond the readings: of two that are close together the slope says little.
            since_ns = min(max(0, wall_ns - before.wall_ns), max(0, elapsed_ns))
            run_ns = wall_ns + before.offset_ns + round(slope * since_ns)
            return run_ns if 0 <= run_ns <= _LATEST_NS else -1

        return to_run_ns

    def _item(self, entry: Entry, to_run_ns: Callable[[int | None], int]) -> bytes | None:
        group, operation = self._group(entry), self._operation(entry.operation)
        if group is None or operation is None:
            return None
        duration_ns = -1 if entry.duration_ns is None else entry.duration_ns
        return _ITEM.pack(
            to_run_ns(entry.created_ns),
            to_run_ns(entry.started_ns),
            to_run_ns(entry.ended_ns),
            duration_ns if 0 <= duration_ns <= _LATEST_NS else -1,
            max(0, min(entry.sequence, _LARGEST)),
            -1 if entry.size is None else max(0, min(entry.size, _LARGEST)),
            group,
            operation,
            _P2P if entry.is_p2p else 0,
        )

    def _group(self, entry: Entry) -> int | None:
        key = (entry.group, entry.backend)
        number = self._groups.get(key)
        if number is None:
            if len(self._groups) == MOST_GROUPS:
                return None
            number = self._groups[key] = len(self._groups)
            ranks = self._members(entry.group)
            if ranks is not None and len(ranks) > self._ranks_left:
                ranks = None
            self._ranks_left -= len(ranks or ())
            self._group_facts.append(
                {
                    "name": _shown(entry.group),
                    "description": _shown(entry.description),
                    "ranks": None if ranks is None else list(ranks),
                    "backend": _shown(entry.backend),
                }
            )
        return number

    def _operation(self, name: str) -> int | None:
        name = _shown(name)
        number = self._operations.get(name)
        if number is None and len(self._operations) < MOST_OPERATIONS:
            number = self._operations[name] = len(self._operations)
        return number


def _shown(text: str) -> str:
    """A text as a run file may have it."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
