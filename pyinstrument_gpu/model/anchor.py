# SPDX-License-Identifier: Apache-2.0
"""Readings of a machine's clocks together with that of the run."""

from __future__ import annotations

from collections.abc import Mapping


def began_ns(anchor: Mapping[str, int], clock: str) -> int | None:
    """When the run began by a clock of its machine; None where the reading lacks one of the two.

    Args:
        anchor: a reading, as in `Run.anchor`.
        clock: "monotonic_ns" or "realtime_ns".
    """
    if not {clock, "run_ns"} <= anchor.keys():
        return None
    return anchor[clock] - anchor["run_ns"]
