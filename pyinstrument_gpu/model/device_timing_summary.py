# SPDX-License-Identifier: Apache-2.0
"""How a device was timed in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceTimingSummary:
    """How the device was timed.

    Attributes:
        every: it was timed in every step that this number divides; the newest value.
        records: number of events that recording threads recorded.
        record_ns: total host time of the driver calls they made for that.
    """

    every: int
    records: int
    record_ns: int
