# SPDX-License-Identifier: Apache-2.0
"""What is known of a program beside its phases, on which conclusions from its run rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

KEY = "program_facts"
"""Where the environment of a run holds them."""


class ProgramFacts(NamedTuple):
    """None is unknown: nothing looked, or what looked could have missed it.

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
    """

    loader_workers: int | None = None
    loader_pins: bool | None = None
    loader_prefetch: int | None = None
    loader_persistent: bool | None = None
    other_streams: bool | None = None
    ranks: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> ProgramFacts:
        """Those that a run's environment holds. A value of another type counts as unknown."""
        found = environment.get(KEY)
        facts = found if isinstance(found, dict) else {}
        return cls(
            loader_workers=_count(facts.get("loader_workers"), least=0),
            loader_pins=_truth(facts.get("loader_pins")),
            loader_prefetch=_count(facts.get("loader_prefetch"), least=0),
            loader_persistent=_truth(facts.get("loader_persistent")),
            other_streams=_truth(facts.get("other_streams")),
            ranks=_count(facts.get("ranks"), least=1),
        )


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any, *, least: int) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return value if is_count else None
