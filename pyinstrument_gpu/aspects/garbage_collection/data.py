# SPDX-License-Identifier: Apache-2.0
"""The data of the garbage collector in a run file and a `Run`, but for the single collections,
which are in the log of causes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.core.file.json_document import Count


class Generation(Struct, frozen=True):
    """The collections of one generation.

    Attributes:
        count: how many there were while the run was recorded.
        objects: how many objects they have freed, as `gc.get_stats` counts them.
    """

    count: Count
    objects: Count


class GarbageCollection(Struct, frozen=True):
    """The work of Python's garbage collector while the run was recorded.

    Attributes:
        generations: the youngest first.
        is_whole: whether each collection was seen. A program may clear `gc.callbacks`.
        is_managed: whether the program had the collector disabled, or has frozen objects.
    """

    generations: Annotated[tuple[Generation, ...], Meta(max_length=16)]
    is_whole: bool
    is_managed: bool = False
