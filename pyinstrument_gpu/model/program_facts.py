# SPDX-License-Identifier: Apache-2.0
"""What is known of a program beside its phases, on which conclusions from its run rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "program_facts"
"""Where the environment of a run holds them."""


@dataclass(frozen=True)
class ProgramFacts:
    """None is unknown: nothing looked.

    Attributes:
        loader_workers: the most worker processes of a DataLoader from which batches were drawn; 0
            if they were all made in the process itself.
        other_streams: whether the program had streams other than the current device's default one:
            made one, or let one wait for another or for an event.
        ranks: how many processes train together.
    """

    loader_workers: int | None = None
    other_streams: bool | None = None
    ranks: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> ProgramFacts:
        """Those that a run's environment holds. A value of another type counts as unknown."""
        found = environment.get(KEY)
        facts = found if isinstance(found, dict) else {}
        streams = facts.get("other_streams")
        return cls(
            loader_workers=_count(facts.get("loader_workers"), least=0),
            other_streams=streams if isinstance(streams, bool) else None,
            ranks=_count(facts.get("ranks"), least=1),
        )


def _count(value: Any, *, least: int) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return value if is_count else None
