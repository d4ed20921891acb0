# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations (FLOPs) of the profiled steps, as the OPERATIONS document has them.

One multiplication and one addition are two. What is counted is what people call a model's FLOPs:
products of matrices, convolutions, attention and recurrent networks. Operators without a formula
are not counted as zero: they have their time instead.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from pyinstrument_gpu.core.file.json_document import Count


class FlopKind(enum.Enum):
    """The purpose of operations."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    """Again what a forward pass has done, during a backward pass (activation checkpointing)."""
    OPTIMIZER = "optimizer"
    """By an optimizer's step, as Muon does."""

    @property
    def is_of_model(self) -> bool:
        """True if the model needs them; others are counted for the hardware only."""
        return self in (FlopKind.FORWARD, FlopKind.BACKWARD)


class FlopCount(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The operations in one phase, of one kind and type of numbers.

    Attributes:
        path: the phase; None outside of all.
        module: None. Files of earlier versions have a row for each module.
        dtype: "bfloat16" for example; "tf32" for float32 on the tensor cores of a GPU.
        flops: in all profiled steps together.
    """

    path: str | None
    module: str | None
    kind: FlopKind
    dtype: str
    flops: Count


class UnknownOperator(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Calls of an operator for which there is no formula.

    Attributes:
        name: as torch calls it; None for work that no operator launched, and for the sum of those
            that are too many.
        time_ns: on the device, or on the host where no work of a device was seen.
    """

    name: str | None
    calls: Count
    time_ns: Count


class Peak(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The most that a device can do, without sparsity.

    Attributes:
        source: a data sheet, or how it was measured.
    """

    dtype: str
    flops_per_second: Annotated[float, Meta(gt=0, lt=1e20)]
    source: str


class Flops(Struct, frozen=True):
    """The floating-point operations counted in the profiled steps.

    Attributes:
        counts: of operators with a formula.
        unknown: of those without, the longest first.
        device: what it was done by: the name of the GPU, or of the processor with the number of
            threads.
        peaks: as far as they are known.
    """

    counts: tuple[FlopCount, ...]
    unknown: tuple[UnknownOperator, ...]
    device: str
    peaks: tuple[Peak, ...]

    @property
    def unknown_ns(self) -> int:
        return sum(one.time_ns for one in self.unknown)

    def ideal_s(self, counts: Iterable[FlopCount]) -> float | None:
        """Return how long the device would take at its peak; None where a peak is not known."""
        peaks = {peak.dtype: peak.flops_per_second for peak in self.peaks}
        counts = [one for one in counts if one.flops]
        if any(one.dtype not in peaks for one in counts):
            return None
        return sum(one.flops / peaks[one.dtype] for one in counts)
