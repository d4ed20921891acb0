# SPDX-License-Identifier: Apache-2.0
"""The names of an accumulator's time series in a recording, each of which is its alone."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

_owners: weakref.WeakValueDictionary[tuple[int, str, str], Any] = weakref.WeakValueDictionary()
"""By recording, kind and text. An accumulator that is gone leaves what it had to the next one:
programs make a new one for each epoch."""


def series_names(
    accumulator_name: str, owner: Any, recording: int, value_names: Iterable[str]
) -> list[str]:
    """The series of these values, the same throughout the recording: `name/value`, or `value` for
    an accumulator without a name. The second accumulator that has a name at the same time gets
    `name-2/value`, or `metrics-2/value`. A series that another accumulator has nevertheless, as
    with a running value `val/loss` beside an accumulator `val`, is called `val/loss-2`."""
    first = f"{accumulator_name}/" if accumulator_name else ""
    others = (f"{accumulator_name or 'metrics'}-{number}/" for number in itertools.count(2))
    prefix = _claimed("prefix", itertools.chain([first], others), owner, recording)
    return [
        _claimed("series", _numbered(prefix + value_name), owner, recording)
        for value_name in value_names
    ]


def _numbered(name: str) -> Iterable[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _claimed(kind: str, texts: Iterable[str], owner: Any, recording: int) -> str:
    """The first of the texts that no other accumulator has."""
    for text in texts:
        if _owners.setdefault((recording, kind, text), owner) is owner:
            return text
    raise AssertionError("there is no end to the texts")
