# SPDX-License-Identifier: Apache-2.0
"""The collective operations of a run, as PyTorch's flight recorder has noted them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import ArrayFields

_ON_STREAMS = ("nccl", "rccl", "xccl", "hccl")

COLLECTIVE_DTYPE = np.dtype(
    [
        ("created_ns", "<i8"),
        ("started_ns", "<i8"),
        ("ended_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("sequence", "<i8"),
        ("bytes", "<i8"),
        ("group", "<i4"),
        ("operation", "<i4"),
        ("is_p2p", "?"),
    ]
)
"""One operation. Times are ns since the run began by the run's own clock, -1 where unknown:
`created_ns` is when the program asked for it, `started_ns` and `ended_ns` when PyTorch noticed that
it had begun and ended, and `duration_ns` its time by the device's clock. `group` indexes
`Collectives.groups`, `operation` indexes `Collectives.operations`. `sequence` counts the operations
of the group, alike on all ranks; point-to-point operations count apart."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of torch.distributed.

    Attributes:
        name: which all ranks of the group give it.
        description: what the program calls it, such as "default_pg"; no part of what it is.
        ranks: of the whole job that are in it; None if that is not known.
        backend: such as "gloo" or "nccl", as the names of its operations have it.
    """

    name: str
    description: str = field(compare=False)
    ranks: tuple[int, ...] | None
    backend: str

    @property
    def label(self) -> str:
        """What the program calls it, or else its name."""
        return self.description or self.name

    @property
    def is_on_stream(self) -> bool:
        """Whether its operations are put on a stream, so that the host goes on."""
        return self.backend.lower() in _ON_STREAMS


@dataclass(frozen=True, eq=False)
class Collectives(ArrayFields):
    """The collective operations of a run.

    Attributes:
        groups: the process groups.
        operations: their names, without the backend: "all_reduce".
        events: the operations one by one (`COLLECTIVE_DTYPE`), in the order in which they were
            created. History: the oldest may be gone.
        missed: how many are not in `events`: they had left the flight recorder before it was read,
            or made room for newer ones.
        was_read: whether the flight recorder was read at all.
    """

    groups: tuple[ProcessGroup, ...] = ()
    operations: tuple[str, ...] = ()
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, COLLECTIVE_DTYPE))
    missed: int = 0
    was_read: bool = False
