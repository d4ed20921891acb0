# SPDX-License-Identifier: Apache-2.0
"""Reads traces as Perfetto does."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """A range, with the name of its track."""

    track: str
    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, Any]


class Trace:
    """A trace with exact times.

    Attributes:
        about: what it says of its runs.
        events: in the order of the file.
        names: of processes, by their numbers and None, and of threads, by both numbers.
        tracks: by process and number of the thread, or by process and name where it is none, the
            slices in the order in which they begin, each with the event with which it does.
    """

    def __init__(self, data: bytes) -> None:
        document = json.loads(data, parse_float=Decimal)
        self.about = document["otherData"]["runs"]
        self.events: list[dict[str, Any]] = document["traceEvents"]
        self.names: dict[tuple[int, int | None], str] = {
            (event["pid"], event.get("tid")): event["args"]["name"]
            for event in self.events
            if event["name"] in ("thread_name", "process_name") and event["ph"] == "M"
        }
        self.tracks: dict[tuple[int, int | str], list[tuple[dict[str, Any], Slice]]] = {}
        for event in self.events:
            if event["ph"] == "X":
                begin_ns = _exact_ns(event["ts"])
                times = begin_ns, begin_ns + _exact_ns(event["dur"])
                track = self.names[event["pid"], event["tid"]]
                one = Slice(track, event["name"], *times, event["args"])
                self.tracks.setdefault((event["pid"], event["tid"]), []).append((event, one))
        for process, found in self._without_thread():
            assert (process, found[0][1].track) not in self.tracks
            self.tracks[process, found[0][1].track] = found

    def _without_thread(self) -> Iterator[tuple[int, list[tuple[dict[str, Any], Slice]]]]:
        """Events are sorted by their times alone; where these are equal, the order of the file
        stays. Those of one number and category nest. The first is the end of nothing, which names
        the track."""
        tracks: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
        for event in self.events:
            if event["ph"] in ("b", "e"):
                track = event["pid"], event["id2"]["local"], event["cat"]
                tracks.setdefault(track, []).append(event)
        for (process, _, _), events in tracks.items():
            first, *events = sorted(events, key=lambda event: event["ts"])
            assert first["ph"] == "e"
            begins: list[int] = []
            found: dict[int, tuple[dict[str, Any], Slice]] = {}
            for number, event in enumerate(events):
                if event["ph"] == "b":
                    begins.append(number)
                    continue
                begun = begins.pop()
                begin = events[begun]
                assert begin["name"] == event["name"]
                times = _exact_ns(begin["ts"]), _exact_ns(event["ts"])
                found[begun] = begin, Slice(first["name"], begin["name"], *times, begin["args"])
            assert not begins
            yield process, [found[number] for number in sorted(found)]

    def of(self, category: str) -> list[dict[str, Any]]:
        """The events with which slices begin."""
        return [event for event, _ in self._all() if event["cat"] == category]

    def slices(self, category: str) -> list[Slice]:
        return [one for event, one in self._all() if event["cat"] == category]

    def _all(self) -> Iterator[tuple[dict[str, Any], Slice]]:
        for found in self.tracks.values():
            yield from found


def _exact_ns(microseconds: Decimal) -> int:
    nanoseconds = microseconds * 1000
    assert nanoseconds == int(nanoseconds)
    return int(nanoseconds)
