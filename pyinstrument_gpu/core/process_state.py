# SPDX-License-Identifier: Apache-2.0
"""Whether a process is there, as far as that can be seen."""

from __future__ import annotations

import enum


class ProcessState(enum.Enum):
    ALIVE = "alive"
    STOPPED = "stopped"
    """By a signal, or by a debugger."""
    GONE = "gone"
    UNKNOWN = "unknown"
