# SPDX-License-Identifier: Apache-2.0
"""How a program ended, as far as its run says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyinstrument_gpu.core.condition import Condition

KEY = "program_end"
"""Where the environment of a run holds it."""


class ProgramEnd(NamedTuple):
    """How a program ended. None is unknown.

    Attributes:
        exit_code: with which exit code.
        exception: by an exception of which type.
        lost_peer: whether that says that another rank did not answer, so that it was not the first.
    """

    exit_code: int | None = None
    exception: str | None = None
    lost_peer: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, Any]) -> ProgramEnd:
        """What a run's environment says of it."""
        found = environment.get(KEY, {})
        exception = found.get("exception") or None
        return cls(found.get("exit_code"), exception, found.get("lost_peer", False))

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code) or self.exception is not None

    @property
    def condition(self) -> Condition:
        """How it is said to have ended, if its recording was ended."""
        if self.has_failed:
            return Condition.FAILED
        return Condition.ENDED if self.exit_code is None else Condition.FINISHED
