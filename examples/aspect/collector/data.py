# SPDX-License-Identifier: Apache-2.0
"""What a run file and a `Run` hold of the garbage collector: one declaration for both."""

from __future__ import annotations

from typing import Annotated

import msgspec

NAME = "collector"
"""Of the document in the run file, and of the attribute of a `Run`."""

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Collector(msgspec.Struct, frozen=True):
    """What Python's garbage collector did while the run was recorded.

    Attributes:
        count: how many collections there were.
        total_ns: how long they took together.
        in_steps_ns: the part of it that fell into steps.
        longest_ns: how long the longest took.
        longest_step: the index of the step that it fell into; None outside steps.
    """

    count: _Count
    total_ns: _Count
    in_steps_ns: _Count
    longest_ns: _Count
    longest_step: _Count | None
