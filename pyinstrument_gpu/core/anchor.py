# SPDX-License-Identifier: Apache-2.0
"""Readings of a machine's clocks together with that of the run."""

from __future__ import annotations

from collections.abc import Mapping

SAME_BOOT_NS = 10 * 10**9
"""Readings of one machine agree on its start within this: its wall clock may have been set."""


LATEST_START_NS = 1 << 62
"""No run begins that late (in 2116); with any time of a run added, it stays within 64 bits."""


def began_ns(anchor: Mapping[str, int], clock: str) -> int | None:
    """When the run began by a clock of its machine; None where the reading lacks one of the two.

    Args:
        anchor: a reading, as in `Run.anchor`.
        clock: "monotonic_ns" or "realtime_ns".
    """
    if not {clock, "run_ns"} <= anchor.keys():
        return None
    return anchor[clock] - anchor["run_ns"]


def booted_ns(anchor: Mapping[str, int]) -> int | None:
    """When the machine was started, by its wall clock: where its monotonic clock was zero. None
    where the reading lacks one of the two."""
    if not {"monotonic_ns", "realtime_ns"} <= anchor.keys():
        return None
    return anchor["realtime_ns"] - anchor["monotonic_ns"]
