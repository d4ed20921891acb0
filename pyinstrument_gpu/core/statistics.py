# SPDX-License-Identifier: Apache-2.0
"""Statistics of phases, by path and scope."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import groups
from pyinstrument_gpu.core.statistic import Statistic, merge_known, of_known

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class PhaseStatistics:
    """The statistics of one phase path; each is None where nothing was measured.

    Attributes:
        host: time on the CPU's clock between begin and end.
        self_host: the same without the time in nested phases.
        device: time on the stream between begin and end.
        blocked: the part of the host time in which the CPU waited for the device.
    """

    host: Statistic | None = None
    self_host: Statistic | None = None
    device: Statistic | None = None
    blocked: Statistic | None = None

    @property
    def count(self) -> int:
        """How often the phase was executed (and ended)."""
        return self.host.count if self.host is not None else 0

    @classmethod
    def merge(cls, parts: Iterable[PhaseStatistics]) -> PhaseStatistics:
        """The statistics of all parts together, each with its like."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        return cls(*(merge_known(getattr(part, f.name) for part in parts) for f in fields(cls)))


class Scope(enum.IntEnum):
    """Where a phase ran, seen from the training step."""

    STEP = 0
    """On the thread that opened the step."""
    OTHER_THREADS = 1
    """On another thread, while a step was open."""
    OUTSIDE = 2
    """While no step was open."""
    PROFILED_STEP = 3
    """As `STEP`, in a step that torch.profiler has slowed."""
    PROFILED_OTHER_THREADS = 4
    """As `OTHER_THREADS`, in a step that torch.profiler has slowed."""

    @property
    def is_profiled(self) -> bool:
        return self >= Scope.PROFILED_STEP


def merged(parts: Iterable[tuple[_Key, PhaseStatistics]]) -> dict[_Key, PhaseStatistics]:
    """The statistics of all parts with the same key together, in order of first appearance."""
    by_key: dict[_Key, list[PhaseStatistics]] = {}
    for key, phase in parts:
        by_key.setdefault(key, []).append(phase)
    return {key: PhaseStatistics.merge(phases) for key, phases in by_key.items()}


def over_scopes(
    statistics: Mapping[tuple[int, Scope], PhaseStatistics],
) -> dict[int, PhaseStatistics]:
    """Statistics by path and scope as those of each path over all scopes, ascending by path. Steps
    that were profiled are left out."""
    return merged(
        (path, phase)
        for (path, scope), phase in sorted(statistics.items())
        if not scope.is_profiled
    )


def as_if_not_profiled(
    statistics: Mapping[tuple[int, Scope], PhaseStatistics],
) -> dict[tuple[int, Scope], PhaseStatistics]:
    """Statistics by path and scope in which profiled steps count as others do."""
    return merged(
        ((path, Scope(scope - Scope.PROFILED_STEP) if scope.is_profiled else scope), phase)
        for (path, scope), phase in statistics.items()
    )


def fold_spans(
    paths: NDArray[np.integer[Any]],
    scopes: NDArray[np.integer[Any]],
    **times_ns: NDArray[np.int64],
) -> dict[tuple[int, Scope], PhaseStatistics]:
    """Statistics of spans by path and scope. Times have the names that `PhaseStatistics` has for
    them; -1 is unknown."""
    folded = {}
    for key, places in groups(paths.astype(np.int64) * len(Scope) + scopes):
        path, scope = divmod(key, len(Scope))
        folded[path, Scope(scope)] = PhaseStatistics(
            **{name: of_known(column[places]) for name, column in times_ns.items()}
        )
    return folded
