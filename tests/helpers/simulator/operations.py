# SPDX-License-Identifier: Apache-2.0
"""What the training thread of a simulated program does, one after the other.

Each operation that draws times has a `place`, a number that is its own in the program. Times are
drawn by place and turn, so they stay the same when something else is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.simulator.duration import Duration

STAGED_AT_ONCE_BYTES = 64 * 1024
"""Pageable memory of up to so much is copied to the device through the command itself."""


@dataclass(frozen=True)
class Work:
    """The host works, and launches nothing."""

    place: int
    host: Duration


@dataclass(frozen=True)
class Launches:
    """Kernels, launched one by one.

    Attributes:
        host: the host's time for each, up to the driver's call.
        kernels_ns: what each takes on the device, multiplied by `device`, whose typical value is 1.
    """

    place: int
    host: Duration
    kernels_ns: tuple[float, ...]
    device: Duration


@dataclass(frozen=True)
class Read:
    """A result is read: a copy to the host, for which the host waits.

    Attributes:
        site: the number of its line in the program.
        call: the host's time beside the wait.
        copy_ns: what the copy takes on the device.
        every: it is made in every so-manieth turn.
    """

    place: int
    site: int
    kind: SyncKind
    call: Duration
    copy_ns: int = 2_000
    size: int = 4
    every: int = 1


@dataclass(frozen=True)
class Copy:
    """A copy to the device that may make the host wait: from pageable memory, `non_blocking` or
    not, or from pinned memory without it.

    Attributes:
        bytes_per_ns: how fast it is; from pinned memory it is as fast as `pinned_bytes_per_ns`.
    """

    place: int
    site: int
    kind: SyncKind
    call: Duration
    size: int
    bytes_per_ns: float
    pinned_bytes_per_ns: float
    non_blocking: bool = False


@dataclass(frozen=True)
class Flush:
    """The host waits until the stream is empty, which no watch sees, as where the allocator returns
    its memory to the driver; it counts that if `is_counted`."""

    is_counted: bool = True


@dataclass(frozen=True)
class NextBatch:
    """The next batch is taken from the loader."""


@dataclass(frozen=True)
class BeginEpoch:
    """The loader begins its next epoch: it starts its workers and asks for the first batches."""


@dataclass(frozen=True)
class MakeBatch:
    """A batch is made in the process itself, apart from the loader: one of an evaluation."""

    place: int
    host: Duration


@dataclass(frozen=True)
class StageBatch:
    """A copy on a second stream, which the host does not wait for: a prefetcher's."""

    place: int
    call: Duration
    copy: Duration


@dataclass(frozen=True)
class AwaitStaged:
    """The compute stream waits for the last copy of the second stream."""


@dataclass(frozen=True)
class Reduce:
    """A collective. It begins on each rank when the work before it is done, and ends on all when
    the last rank has arrived, and it has taken its time.

    Attributes:
        is_overlapped: whether it has a stream of its own, and the compute stream goes on; it does
            not, where the collective is enqueued behind the work.
    """

    place: int
    call: Duration
    device: Duration
    is_overlapped: bool


@dataclass(frozen=True)
class AwaitReduced:
    """The compute stream waits for all collectives so far."""


@dataclass(frozen=True)
class Phase:
    """A phase around operations.

    Attributes:
        every: it is executed in every so-manieth turn, the last of them, as an optimizer is that
            steps on accumulated gradients.
    """

    name: str
    body: tuple[Operation, ...]
    every: int = 1


Operation = (
    Work
    | Launches
    | Read
    | Copy
    | Flush
    | NextBatch
    | BeginEpoch
    | MakeBatch
    | StageBatch
    | AwaitStaged
    | Reduce
    | AwaitReduced
    | Phase
)


@dataclass(frozen=True)
class Periodic:
    """What is done between steps, behind every so-manieth: an evaluation, or a checkpoint."""

    name: str
    every: int
    turns: int
    body: tuple[Operation, ...]


def walk(body: Sequence[Operation]) -> Iterator[Operation]:
    """All operations, those inside phases too."""
    for operation in body:
        yield operation
        if isinstance(operation, Phase):
            yield from walk(operation.body)
