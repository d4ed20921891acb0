# SPDX-License-Identifier: Apache-2.0
"""The data of torch.compile in a run file and a `Run`: one declaration for both.

Texts come from the program and from torch; whoever writes them cuts them off at `MOST_TEXT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.compilations import (
    MOST_COMPILATIONS,
    MOST_LINES,
    MOST_TEXT,
    NAME,
)
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import Count, decode_object

COMPILATION_DTYPE = np.dtype(
    [(name, "<i8") for name in ("thread", "path", "step", "host_begin_ns", "host_end_ns", "number")]
)
"""A compilation on the timeline. `number` is its place in `Compilations.compilations`; -1 is
missing."""

_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Time = Annotated[int, Meta(ge=0, lt=TIME_LIMIT_NS)]


class CompiledPlace(Struct, frozen=True, kw_only=True):
    """A place in the program; None what is not known."""

    function: _Text | None = None
    file: _Text | None = None
    line: Count | None = None


class Compilation(CompiledPlace, frozen=True, kw_only=True):
    """A compilation of the function at this place.

    Attributes:
        begin_ns: since the run began.
        duration_ns: how long it took.
        kind: what torch calls that which made it compile, such as "dynamo" or "lazy_backward".
        thread: the number that the system has for its thread; in a `Run` an index into `threads`,
            None for one that is not there.
        step: the index of the step that was open when it began.
        path: the innermost phase then, as an index into the paths of the run.
        recompiled: whether the function had been compiled before, for other arguments; None if
            torch did not say.
        reason: why that did not fit, as torch says it.
        inductor_ns: the part of it that TorchInductor took.
        failure: why there is no compiled function.
    """

    begin_ns: _Time
    duration_ns: _Time
    kind: _Text
    thread: Count | None = None
    step: Count | None = None
    path: Count | None = None
    recompiled: bool | None = None
    reason: _Text | None = None
    inductor_ns: Count | None = None
    failure: _Text | None = None


class ReachedLimit(CompiledPlace, frozen=True, kw_only=True):
    """A function that torch compiles no more.

    Attributes:
        at_ns: when, since the run began.
        limit: the setting, as "recompile_limit (8)".
        reason: why it would have been compiled once more.
        hint: what torch says to do about it.
    """

    at_ns: _Time
    limit: _Text
    reason: _Text | None = None
    hint: _Text | None = None


class GraphBreak(CompiledPlace, frozen=True, kw_only=True):
    """A line of the program at which the graphs of a function break.

    Attributes:
        reason: why, as torch says it.
        count: in how many compilations.
    """

    reason: _Text
    count: Count


class Compilations(Struct, frozen=True, kw_only=True):
    """The compilations of torch.compile while the run was recorded.

    Attributes:
        count: how many compilations there were, of which `compilations` are the first.
        total_ns: how long at least one thread compiled.
        compilations: in the order in which they ended.
        limits: the functions that are compiled no more.
        breaks: where graphs broke.
        lost: how many graph breaks and reached limits found no room.
        unknown: why nothing of this is known; None if it is.
        unknown_phases: why less than what was asked for is known of phases in compiled code.
    """

    count: Count = 0
    total_ns: Count = 0
    compilations: Annotated[tuple[Compilation, ...], Meta(max_length=MOST_COMPILATIONS)] = ()
    limits: Annotated[tuple[ReachedLimit, ...], Meta(max_length=MOST_LINES)] = ()
    breaks: Annotated[tuple[GraphBreak, ...], Meta(max_length=MOST_LINES)] = ()
    lost: Count = 0
    unknown: _Text | None = None
    unknown_phases: Annotated[tuple[_Text, ...], Meta(max_length=MOST_LINES)] = ()


def decode_compilations(data: bytes, paths: int, threads: Sequence[int]) -> Compilations:
    """Decode the document, with the threads and paths that the file has.

    Args:
        paths: how many there are.
        threads: the system's numbers of the threads.

    Raises:
        RunFileDamagedError: the document does not fit.
    """
    found = decode_object(data, NAME, Compilations)
    if len(found.compilations) > found.count:
        found = replace(found, count=len(found.compilations))
    numbers = {native_id: number for number, native_id in enumerate(threads)}
    return replace(
        found,
        compilations=tuple(
            replace(
                one,
                thread=None if one.thread is None else numbers.get(one.thread),
                path=one.path if one.path is not None and one.path < paths else None,
            )
            for one in found.compilations
        ),
    )


def on_timeline(found: Compilations | None) -> NDArray[np.void]:
    """Return those that lie on a known thread (`COMPILATION_DTYPE`)."""
    rows = [
        (
            one.thread,
            -1 if one.path is None else one.path,
            -1 if one.step is None else one.step,
            one.begin_ns,
            one.begin_ns + one.duration_ns,
            number,
        )
        for number, one in enumerate(() if found is None else found.compilations)
        if one.thread is not None
    ]
    return np.array(rows, COMPILATION_DTYPE)
