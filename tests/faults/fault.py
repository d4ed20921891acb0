# SPDX-License-Identifier: Apache-2.0
"""A fault: what is done to a recording or to its file, and what must hold afterwards.

Rows are written beside each other in one file per group, and `table.py` has the groups in order:

    FAULTS = FaultGroup("fork")

    @FAULTS.fault(done="A forked child records phases.", holds="It records nothing.", times=20)
    def child_records(trial: Trial) -> None:
        ...  # do it, and assert what must hold

One loop runs them all (`test_faults.py`), and tests/faults/README.md shows both sentences and how
often it is done (`page.py`). So the sentences are for users: they promise what the function
asserts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass
class Trial:
    """One of the times that a fault is done.

    Attributes:
        fault: the name of the fault.
        number: which time it is, from 0.
        parent: where folders can be made.
    """

    fault: str
    number: int
    parent: Path

    @cached_property
    def random(self) -> random.Random:
        """Draws the same in every run of the tests."""
        return random.Random(f"{self.fault} {self.number}")

    @cached_property
    def directory(self) -> Path:
        """An empty folder of this trial's own."""
        directory = self.parent / str(self.number)
        directory.mkdir()
        return directory

    @property
    def path(self) -> Path:
        """Where a run file can be written."""
        return self.directory / "run.gpurun"


Check = Callable[[Trial], "str | None"]
"""Does the fault, and fails unless what must hold does. It may return how it came out, where that
differs from trial to trial and must not always be the same."""


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    Attributes:
        name: that of the function.
        done: what is done, as a sentence.
        holds: what must hold, as a sentence or several.
        check: does it once.
        times: how often `make test` does it; 0 if it takes too long for that.
        thorough_times: how often `make check` does it besides.
        slow_times: how often `make test-all` does it besides both.
        at_least: the least share of the trials that must come out in that way.
    """

    name: str
    done: str
    holds: str
    check: Check
    times: int = 1
    thorough_times: int = 0
    slow_times: int = 0
    at_least: Mapping[str, float] = field(default_factory=dict)


class FaultGroup:
    """The rows of one kind of fault, in the order in which they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []

    def fault(
        self,
        *,
        done: str,
        holds: str,
        **options: Any,
    ) -> Callable[[Check], Check]:
        """Adds a row whose check is the decorated function; options are attributes of `Fault`."""

        def add(check: Check) -> Check:
            self.faults.append(Fault(check.__name__, done, holds, check, **options))
            return check

        return add
