# SPDX-License-Identifier: Apache-2.0
"""The data of what holds steps up in a run file and a `Run`, but for how long it did in each step,
which is in the log of causes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.aspects.slow_step_causes import MOST_TEXT, MOST_THREADS
from pyinstrument_gpu.core.file.json_document import Count

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]


class SlowStepCauses(Struct, frozen=True):
    """The causes that could be observed while the run was recorded.

    Attributes:
        is_gil_seen: whether it can be told that a thread waits for the GIL.
        has_pressure: whether the kernel says for how long memory has made programs wait.
        threads: those of the program in Python, the system's number of each and its name.
        targets: the functions that some of them run: the number of the thread, file, first line
            and name.
    """

    is_gil_seen: bool
    has_pressure: bool
    threads: Annotated[
        tuple[tuple[Count, _Text], ...],
        Meta(max_length=MOST_THREADS),
    ] = ()
    targets: Annotated[
        tuple[tuple[Count, _Text, Count, _Text], ...], Meta(max_length=MOST_THREADS)
    ] = ()
