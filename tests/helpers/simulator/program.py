# SPDX-License-Identifier: Apache-2.0
"""A training program to simulate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.loader import LoaderOptions
from tests.helpers.simulator.operations import (
    Copy,
    NextBatch,
    Operation,
    Periodic,
    Phase,
    Read,
    Reduce,
    StageBatch,
    walk,
)


@dataclass(frozen=True)
class RecorderOptions:
    """The recorder of a simulated program, and the clock of its device.

    Attributes:
        times_device: whether phases are timed on the device.
        watches: whether syncs are watched.
        every: the device is timed in every so-manieth step; None as the default budget has it.
        record_ns: what recording an event costs the host.
        event_ns: what it costs the device.
        phase_ns: what beginning or ending a phase costs the host otherwise.
        resolution_ns: of event times.
        uncertainty_ns: by how much the device's clock, placed on the run's axis, may be off at the
            points where the two are compared. It is off by up to as much.
        drift: how much faster the device's clock is.
        compared_every_ns: how often the clocks are compared.
        lost_share: so many spans lose their device times.
        knows_program: whether the run holds what the recorder learns of the program: streams,
            ranks, workers.
    """

    times_device: bool = True
    watches: bool = True
    every: int | None = 1
    record_ns: int = 1_500
    event_ns: int = 700
    phase_ns: int = 60
    resolution_ns: int = 32
    uncertainty_ns: int = 2_000
    drift: float = 20e-6
    compared_every_ns: int = 2_000_000_000
    lost_share: float = 0.0
    knows_program: bool = True


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        seed: of its times.
        steps: how many.
        step: what a step does.
        loader: its loader; None where it has none.
        between: what is done behind each step, outside of all.
        periodic: what is done behind some of them.
        has_device: whether there is one. Without, launches take the host's time and the kernels'
            own, and a read waits for nothing.
        queue_depth: how many commands may be enqueued and not done.
        latency_ns: from a launch to its begin on an idle device.
        wake_ns: until a host that waited for the device goes on.
        warm_up_steps, warm_up_factor: the host takes so many times as long in the first step, and
            half as much more in each of these steps.
        ranks: how many train together.
        edits: the changes that were made to it.
        edited_ranks: on how many ranks, the recorded one first.
    """

    seed: int
    steps: int
    step: tuple[Operation, ...]
    loader: LoaderOptions | None = None
    between: tuple[Operation, ...] = ()
    periodic: tuple[Periodic, ...] = ()
    has_device: bool = True
    queue_depth: int = 1024
    latency_ns: int = 4_000
    wake_ns: int = 3_000
    warm_up_steps: int = 0
    warm_up_factor: float = 1.0
    ranks: int = 1
    recorder: RecorderOptions = field(default_factory=RecorderOptions)
    edits: frozenset[Edit] = frozenset()
    edited_ranks: int = 0

    def without(self, edit: Edit, *, on_all_ranks: bool = True) -> Program:
        """The program with one more change made to it: on all ranks, or on the recorded one alone.
        All times are drawn as before."""
        ranks = self.ranks if on_all_ranks else 1
        return replace(self, edits=self.edits | {edit}, edited_ranks=ranks)

    @property
    def outside(self) -> tuple[Operation, ...]:
        """What is done outside of steps, in their phases."""
        return (*self.between, *(Phase(each.name, each.body) for each in self.periodic))

    @property
    def operations(self) -> list[Operation]:
        """All, wherever they are."""
        return list(walk((*self.step, *self.outside)))

    @property
    def sites(self) -> dict[int, SyncKind]:
        """The kinds of its sync sites by number."""
        calls = (each for each in self.operations if isinstance(each, Read | Copy))
        return {call.site: call.kind for call in calls}

    @property
    def has_other_streams(self) -> bool:
        """Whether it may have other streams than the default one: a process group may."""
        return any(isinstance(each, StageBatch | Reduce) for each in self.operations)

    @property
    def takes_batches(self) -> bool:
        return any(isinstance(each, NextBatch) for each in self.operations)
