# SPDX-License-Identifier: Apache-2.0
"""This machine and its clocks, read together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.core.anchor import SAME_BOOT_NS, booted_ns


@dataclass(frozen=True)
class Clocks:
    """The clocks of a machine at one moment.

    Attributes:
        host: its name.
        monotonic_ns: CLOCK_MONOTONIC, which a run's anchors have.
        boottime_ns: CLOCK_BOOTTIME, in which the kernel says when processes began. It also counts
            while the machine sleeps.
        realtime_ns: the wall clock.
    """

    host: str
    monotonic_ns: int
    boottime_ns: int
    realtime_ns: int

    @classmethod
    def now(cls) -> Clocks:
        monotonic_ns = time.monotonic_ns()
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        boottime_ns = monotonic_ns if boot is None else time.clock_gettime_ns(boot)
        host = os.uname().nodename if hasattr(os, "uname") else ""
        return cls(host, monotonic_ns, boottime_ns, time.time_ns())

    def are_of(self, environment: Mapping[str, Any], anchor: Mapping[str, int]) -> bool:
        """Whether a run is recorded on this machine since it was started, as far as can be told:
        the name is the same, and so is the moment at which the monotonic clock began."""
        its_ns = booted_ns(anchor)
        if its_ns is None or environment.get("host") != self.host:
            return False
        return abs(self.realtime_ns - self.monotonic_ns - its_ns) < SAME_BOOT_NS
