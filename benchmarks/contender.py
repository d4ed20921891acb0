# SPDX-License-Identifier: Apache-2.0
"""Something to time in turn with others, and what it costs per use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns


def timed(batch: Callable[[], object]) -> Callable[[], int]:
    """A function that does the batch and returns how many ns it took."""

    def measure() -> int:
        begin_ns = perf_counter_ns()
        batch()
        return perf_counter_ns() - begin_ns

    return measure


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        label: its name in tables.
        measure: does a batch of it and returns how many ns that took.
        uses: how many times it is done in a batch; times are shown per use.
        baseline: what the batch costs without it, such as the empty loop; taken off.
    """

    label: str
    measure: Callable[[], int]
    uses: int = 1
    baseline: Contender | None = None


def per_use_ns(
    contender: Contender,
    batches_ns: Mapping[str, Sequence[float]],
    figure: Callable[[Sequence[float]], float],
) -> float:
    """What one use costs.

    Args:
        batches_ns: of every contender and baseline, by label: the times of its batches.
        figure: of the batches' times: their least or their median, for example.
    """
    gross_ns = figure(batches_ns[contender.label]) / contender.uses
    baseline = contender.baseline
    return gross_ns - (0 if baseline is None else per_use_ns(baseline, batches_ns, figure))
