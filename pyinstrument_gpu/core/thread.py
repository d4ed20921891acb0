# SPDX-License-Identifier: Apache-2.0
"""A thread of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thread:
    """A thread that ended a span or a step.

    Attributes:
        native_id: the operating system's number of the thread.
        name: its name when it was first seen.
    """

    native_id: int
    name: str
