# SPDX-License-Identifier: Apache-2.0
"""The data of a start-up in a run file and a `Run`: one declaration for both.

Texts come from the program; whoever writes them cuts them off at `MOST_TEXT`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pyinstrument_gpu.aspects.startup import MOST_INTERVALS, MOST_TEXT
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import Count

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Time = Annotated[int, Meta(ge=0, lt=TIME_LIMIT_NS)]
_Part = Literal["import", "model", "checkpoint", "device", "optimizer", "group", "workers", "batch"]


class Interval(Struct, frozen=True, kw_only=True):
    """A time in which a program started up. It may have others in it.

    Attributes:
        part: what it did.
        name: the module that was imported, or the class of what was made; empty where there is
            nothing to name.
        begin_ns, end_ns: by the monotonic clock of the machine.
        file, line: of the program, or else of the library that called; None if there is none.
    """

    part: _Part
    name: _Text
    begin_ns: _Time
    end_ns: _Time
    file: _Text | None = None
    line: Count | None = None


class Startup(Struct, frozen=True, kw_only=True):
    """The work of a program before its first step, and in that. Times are of the machine's
    monotonic clock, in ns.

    Attributes:
        process_ns: when the process began; None unknown.
        launched_ns: when `pyinstrument-gpu run` began in it; None if the program records itself.
        watched_ns: since when the intervals are known.
        program_ns: when the first line of the program ran; None where that was before the rest.
        first_step_ns: when the first step began; None if none has.
        intervals: the longer ones, in the order in which they ended.
        short_ns: by part, the time of those that are too short for the list, outside of all others
            and before the first step.
        lost: how many intervals found no room.
        not_seen: parts of which some function could not be observed.
    """

    process_ns: _Time | None = None
    launched_ns: _Time | None = None
    watched_ns: _Time
    program_ns: _Time | None = None
    first_step_ns: _Time | None = None
    intervals: Annotated[tuple[Interval, ...], Meta(max_length=MOST_INTERVALS + 1)] = ()
    short_ns: dict[_Part, Count] = {}
    lost: Count = 0
    not_seen: tuple[_Part, ...] = ()
