# SPDX-License-Identifier: Apache-2.0
"""Something to compare a phase with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.way import Way


class PeerMissing(Exception):
    """A peer can't be measured here; the text says why."""


@dataclass(frozen=True)
class History:
    """What a peer keeps of each use.

    Attributes:
        spans: uses after which its memory is looked at.
        note: what it keeps, and why there are fewer uses than elsewhere if there are.
    """

    spans: int
    note: str


@dataclass(frozen=True)
class Peer:
    """One row of the comparison.

    Attributes:
        name: as in tables.
        differs: what it does more or less than one of our recorded phases.
        set_up: the way, ready in the block. Raises ImportError or `PeerMissing`.
        uses: how many uses make a batch.
        history: what it keeps of each use; None where that is nothing.
        is_ours: whether it is a way to use this package.
        in_steps: whether it takes part where whole training steps are timed.
    """

    name: str
    differs: str
    set_up: Callable[[], AbstractContextManager[Way]]
    uses: int
    history: History | None = None
    is_ours: bool = False
    in_steps: bool = False


def why_missing(error: Exception) -> str:
    """What is said of a peer whose set-up has failed so."""
    if isinstance(error, PeerMissing):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{error.name} is not installed"
    # Somebody else's package may fail in any way.
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
