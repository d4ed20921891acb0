# SPDX-License-Identifier: Apache-2.0
"""How a device was timed in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceTimingSummary:
    """How the device was timed.

    Attributes:
        every: It was timed in every step whose number this one divides. It may change as a run
            goes on; this is its last value.
        records: The number of events that the program's threads recorded.
        record_ns: The total host time of the driver calls that they made for it.
    """

    every: int
    records: int
    record_ns: int
