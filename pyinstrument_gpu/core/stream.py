# SPDX-License-Identifier: Apache-2.0
"""A stream of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_LAST_DEFAULT_HANDLE = 2


@dataclass(frozen=True)
class Stream:
    """A stream of a device.

    Attributes:
        device: the device's ordinal.
        handle: the driver's handle; 0, 1 and 2 mean the default stream.
        name: "default stream", or "stream 1", "stream 2" and so on for each device.
    """

    device: int
    handle: int
    name: str

    @property
    def is_default(self) -> bool:
        return self.handle <= _LAST_DEFAULT_HANDLE


def named_streams(places: Iterable[tuple[int, int]]) -> tuple[Stream, ...]:
    """Streams given by device and handle, with their names: numbered in order of appearance."""
    numbers: dict[int, int] = {}
    streams = []
    for device, handle in places:
        name = "default stream"
        if handle > _LAST_DEFAULT_HANDLE:
            numbers[device] = numbers.get(device, 0) + 1
            name = f"stream {numbers[device]}"
        streams.append(Stream(device, handle, name))
    return tuple(streams)
