# SPDX-License-Identifier: Apache-2.0
"""Facts about a program beside its phases, on which conclusions from its run rest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

KEY = "program_facts"
"""Where the environment of a run holds them."""

CHILDREN = "children_cpu_s"
"""In the environment of a run of `pyinstrument-gpu run`: CPU time of the processes that it started,
and that ended."""

_PYTHON = re.compile(r"python[\d.]*t?(\.exe)?$")


def is_python(word: str) -> bool:
    """Return whether a word of a command line is the name of an interpreter."""
    return _PYTHON.search(os.path.basename(word)) is not None


class ProgramFacts(NamedTuple):
    """Facts about a program. None is unknown: nothing looked, or what looked could have missed it.

    Where the steps of a program draw from several DataLoaders with different options,
    `loader_pins`, `loader_prefetch` and `loader_persistent` are those with which most batches were
    loaded.

    Attributes:
        loader_workers: the most worker processes of a DataLoader from which steps drew batches; 0
            if they were all made in the process itself.
        loader_pins: whether it was told to pin memory. (Without an accelerator, torch ignores it.)
        loader_prefetch: how many batches each worker makes ahead; 0 without workers.
        loader_persistent: whether its workers stay from one epoch to the next.
        other_streams: whether while it was recorded the program had streams other than its
            device's default one: it made one, put work on one, let one wait, worked on several
            devices, or used a process group that may have some of its own.
        ranks: how many processes train together.
        rendezvous_ns: how long the first process group took to be made, if it connects each rank
            with all others, as gloo does: then it waits until the last of them has come.
    """

    loader_workers: int | None = None
    loader_pins: bool | None = None
    loader_prefetch: int | None = None
    loader_persistent: bool | None = None
    other_streams: bool | None = None
    ranks: int | None = None
    rendezvous_ns: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> ProgramFacts:
        """Return the facts in a run's environment."""
        found = environment.get(KEY, {})
        return cls(**{name: found.get(name) for name in cls._fields})
