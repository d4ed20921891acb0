# SPDX-License-Identifier: Apache-2.0
"""Facts that join the environment of a run as its recording ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SOURCES: list[Callable[[], dict[str, Any]]] = []
"""Each is called once for each recording, and must not raise."""


def end_facts() -> dict[str, Any]:
    """What all of them say."""
    facts: dict[str, Any] = {}
    for source in SOURCES:
        facts.update(source())
    return facts
