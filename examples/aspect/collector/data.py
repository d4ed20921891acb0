# SPDX-License-Identifier: Apache-2.0
"""What a run file and a `Run` hold of the garbage collector: one declaration for both."""

from __future__ import annotations

import msgspec

from pyinstrument_gpu.core.file.json_document import Count

NAME = "collector"
"""Of the document in the run file, and of the attribute of a `Run`."""


class Collector(msgspec.Struct, frozen=True):
    """What Python's garbage collector did while the run was recorded.

    Attributes:
        count: how many collections there were.
        total_ns: how long they took together.
        in_steps_ns: the part of it that fell into steps.
        longest_ns: how long the longest took.
        longest_step: the index of the step that it fell into; None outside steps.
    """

    count: Count
    total_ns: Count
    in_steps_ns: Count
    longest_ns: Count
    longest_step: Count | None
