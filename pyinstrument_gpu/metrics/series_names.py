# SPDX-License-Identifier: Apache-2.0
"""What is put before the names of an accumulator's values in a recording."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_owners: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()
"""By recording and prefix. An accumulator that is gone leaves its prefix to the next one: programs
make a new one for each epoch."""


def series_prefix(name: str, owner: Any, recording: int) -> str:
    """The prefix of an accumulator with this name, the same throughout the recording: `name/`, or
    nothing without a name. The second one that has it at the same time gets `name-2/`, or
    `metrics-2/`."""
    numbered = (f"{name or 'metrics'}-{number}/" for number in itertools.count(2))
    for prefix in itertools.chain([f"{name}/" if name else ""], numbered):
        if _owners.setdefault((recording, prefix), owner) is owner:
            return prefix
    raise AssertionError("there is no end to the numbers")
