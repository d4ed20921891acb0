# SPDX-License-Identifier: Apache-2.0
"""The changes to a program whose savings are looked at."""

from __future__ import annotations

import enum


class Change(enum.Enum):
    SYNC = "sync"
    """The calls of one site."""
    ALL_SYNCS = "all syncs"
    COPIES = "copies to the device"
    """Copies that make the host wait: from pageable memory, or not `non_blocking`."""
    DATA_WAIT = "wait for data"
    LAUNCHES = "launches"
    """The host's own time in a phase that was timed on the device."""
