# SPDX-License-Identifier: Apache-2.0
"""Memory of a run: by phase, over steps, and when there was none left.

Its declarations are also those of the MEMORY document (docs/run-file.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from pyinstrument_gpu.core.clocks import began_ns
from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.items import NONE
from pyinstrument_gpu.core.file.json_document import (
    LOST_PATH,
    Count,
    PathName,
    decode_object,
)
from pyinstrument_gpu.core.file.steps import StepNumbering

MEMORY_POINT_DTYPE = np.dtype(
    [("step", np.int64), ("allocated_bytes", np.int64), ("reserved_bytes", np.int64)]
)
"""Memory at the end of a step: the step's index, and bytes; reserved ones are -1 if unknown."""

_LIMIT = 1 << 62
_MOST_POINTS = 1000  # the time and memory of a slope grow with their square

_Bytes = Annotated[int, Meta(ge=0, lt=_LIMIT)]
_Change = Annotated[int, Meta(gt=-_LIMIT, lt=_LIMIT)]
_Serial = Annotated[int, Meta(ge=0, lt=NONE)]


class MedianBytes(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The median of what was read, in bytes, and an interval that holds the true one in at least
    95 % of cases, as long as what was read is independent."""

    median: _Change
    low: _Change
    high: _Change

    def __post_init__(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError("a median lies outside of its interval")


class PhaseMemory(Struct, frozen=True):
    """Memory around the calls of a phase, in the steps that were read.

    Attributes:
        path: the phase and those around it.
        calls: how many calls were read.
        steps: how many steps with such calls.
        begin_bytes, end_bytes: what was allocated when a call began and ended, on average.
        peak_bytes: the most that was allocated during a call, as far as it is known.
        peak_is_exact: false: in calls in which the run's peak did not rise it may have been more.
        left_bytes: what the phase left behind per step, phases inside included; below 0, what it
            freed. Unknown after fewer than six steps.
        own_left_bytes: the same without phases inside.
    """

    path: PathName
    calls: Count
    steps: Count
    begin_bytes: _Bytes
    end_bytes: _Bytes
    peak_bytes: _Bytes
    peak_is_exact: bool
    left_bytes: MedianBytes | None = None
    own_left_bytes: MedianBytes | None = None


@dataclass(frozen=True)
class ModuleBytes:
    """The memory of the parameters and buffers of one module, without modules inside.

    Attributes:
        name: in its model; of a model itself, its class.
        bytes: with gradients and optimizer state.
    """

    name: str
    bytes: _Bytes


class PhaseBytes(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was saved in a phase for the backward pass.

    Attributes:
        path: the innermost phase; None: outside phases.
        bytes: of activations that are in `HeldMemory.activations_bytes`.
    """

    path: PathName | None
    bytes: _Bytes


@dataclass(frozen=True)
class HeldMemory:
    """The holders of memory at some moment. Each storage counts once.

    Attributes:
        parameters_bytes: parameters of modules and optimizers.
        gradients_bytes: their gradients.
        buffers_bytes: buffers of modules.
        optimizer_state_bytes: what optimizers keep of their parameters.
        inputs_bytes: what the program gave its models; where nobody saw that, activations have it.
        activations_bytes: all else that autograd had saved for the backward pass.
        modules: those that held most, without activations.
        allocated_bytes: what tensors occupied of the device; None where no allocator counts.
    """

    parameters_bytes: _Bytes = 0
    gradients_bytes: _Bytes = 0
    buffers_bytes: _Bytes = 0
    optimizer_state_bytes: _Bytes = 0
    inputs_bytes: _Bytes = 0
    activations_bytes: _Bytes = 0
    modules: tuple[ModuleBytes, ...] = ()
    allocated_bytes: _Bytes | None = None

    @property
    def kinds(self) -> dict[str, int]:
        """The memory that is held, in bytes, by kind."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "buffers": self.buffers_bytes,
            "optimizer state": self.optimizer_state_bytes,
            "inputs": self.inputs_bytes,
            "activations": self.activations_bytes,
        }

    @property
    def known_bytes(self) -> int:
        """The sum of all of it."""
        return sum(self.kinds.values())


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Who held memory around the backward pass of a step: of the few that were looked at, the one
    at which most was held.

    Attributes:
        step: index of the step.
        begin: as the pass began.
        end: as it had ended; None: it raised an exception.
        activation_modules: the modules whose own code saved most activations, without modules
            inside.
        phases: where they were saved; empty: not known.
        optimizers: how many optimizers of torch had made a step. Without any, nothing is known of
            optimizer state.
        unseen: how many nodes of autograd, or packed tensors, did not show what they hold.
        cost_ns: what the look took of the step.
    """

    step: Count
    begin: HeldMemory
    end: HeldMemory | None = None
    activation_modules: tuple[ModuleBytes, ...] = ()
    phases: tuple[PhaseBytes, ...] = ()
    optimizers: Count = 0
    unseen: Count = 0
    cost_ns: Count = 0

    @property
    def most(self) -> HeldMemory:
        """The moment at which more was held."""
        if self.end is None or self.begin.known_bytes >= self.end.known_bytes:
            return self.begin
        return self.end


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryHolders(HeldMemory):
    """Who held the memory of a device when there was none left.

    Attributes:
        activation_modules: the modules that held most activations, as parameters used before and
            after a node of autograd tell.
        phases: where the activations of the open step were saved; empty: not known.
        unseen: how many nodes of autograd, or packed tensors, did not show what they hold; None:
            activations are not known.
    """

    activation_modules: tuple[ModuleBytes, ...] = ()
    phases: tuple[PhaseBytes, ...] = ()
    unseen: Count | None = None


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """A time at which a GPU had no memory left.

    Attributes:
        path: the innermost phase that was open.
        step: the index of the step that was open.
        module: the module that was running.
        device: the GPU.
        time_ns: since the run began; in the file by the machine's clock.
        request_bytes: what was asked for.
        free_bytes: what was free on the device.
        limit_bytes: what the process may have at most: the device's memory, or a part of it.
        allocated_bytes: what tensors occupied.
        reserved_bytes: what PyTorch held, for tensors or for later.
        settings: PYTORCH_ALLOC_CONF, or PYTORCH_CUDA_ALLOC_CONF.
        holders: who held the memory; known of the first time only.
        snapshot: name of the file beside the run that has the allocator's snapshot.
    """

    path: PathName | None = None
    step: Count | None = None
    module: str | None = None
    device: Count
    time_ns: Annotated[int, Meta(ge=0, lt=_LIMIT)] | None = field(default=None, name="monotonic_ns")
    request_bytes: _Bytes
    free_bytes: _Bytes
    limit_bytes: _Bytes
    allocated_bytes: _Bytes | None = None
    reserved_bytes: _Bytes | None = None
    settings: str | None = None
    holders: OutOfMemoryHolders | None = None
    snapshot: str | None = None


_Holders = TypeVar("_Holders", StepMemory, OutOfMemoryHolders)


class _MemoryFacts(Struct, frozen=True, kw_only=True):
    """The fields of the file that users see as they are."""

    device: Count | None = None
    steps: Count = 0
    lost: Count = 0
    peak_bytes: _Bytes | None = None
    reserved_peak_bytes: _Bytes | None = None
    allocation_retries: Count | None = None
    phases_lost: Count = 0
    outside_left_bytes: MedianBytes | None = None
    held: StepMemory | None = None
    notes: tuple[str, ...] = ()


class Memory(_MemoryFacts, frozen=True, kw_only=True):
    """Memory in those steps of a run that were read.

    Attributes:
        device: Number of the device; None: it is the memory of the process that is resident.
        steps: How many steps were read.
        lost: How many readings failed, or had to be left out.
        peak_bytes: The most that was allocated at any time so far, by the allocator's own counter,
            which may have been reset before the first step was read.
        reserved_peak_bytes: The same of what was reserved; None if that is unknown.
        allocation_retries: How often, between the first step that was read and the last one, the
            allocator gave all unused memory back to the driver to get what it needed, for which the
            host waits for the device; None if that is unknown.
        retried_steps: The steps in which it did, of those that were read; the newest ones.
        phases: The phases in those steps, by path.
        phases_lost: Calls of phases that are not in `phases`, because there were too many paths.
        outside_left_bytes: What the steps left behind outside all phases.
        held: Who held memory around a backward pass; None: none was looked at.
        points: Memory at the end of steps, in the columns of `MEMORY_POINT_DTYPE`: of those that
            were read all, or every so many.
        out_of_memory_count: How often a device had no memory left.
        out_of_memory: The first of these times, and the last.
        notes: What could not be recorded as requested, in sentences.
    """

    phases: Mapping[str, PhaseMemory] = field(default_factory=dict)
    retried_steps: tuple[int, ...] = ()
    points: NDArray[np.void] = field(default_factory=lambda: np.empty(0, MEMORY_POINT_DTYPE))
    out_of_memory_count: int = 0
    out_of_memory: Sequence[OutOfMemory] = ()


class _Events(Struct, frozen=True):
    count: Count = 0
    events: tuple[OutOfMemory, ...] = ()


class _Document(_MemoryFacts, frozen=True, kw_only=True):
    """The MEMORY document."""

    phases: tuple[PhaseMemory, ...] = ()
    retried_steps: Annotated[tuple[_Serial, ...], Meta(max_length=_MOST_POINTS)] = ()
    points: Annotated[
        tuple[tuple[_Serial, _Bytes, _Bytes | None], ...], Meta(max_length=_MOST_POINTS)
    ] = ()
    out_of_memory: _Events = _Events()


def decode_memory(
    data: bytes, paths: Sequence[str], numbering: StepNumbering, anchor: Mapping[str, int]
) -> Memory:
    """Decode the document; of phases, those whose path the file has.

    Args:
        paths: the run's paths.
        numbering: makes the steps' indices of their serial numbers.
        anchor: the first reading of the machine's clocks.

    Raises:
        RunFileDamagedError: it does not fit.
    """
    found = decode_object(data, "MEMORY", _Document, paths)
    points = _points(found, numbering)
    if (np.diff(points["step"]) <= 0).any():
        raise nonsense("MEMORY", "its points do not ascend")
    events = tuple(_event(one, anchor) for one in found.out_of_memory.events)
    retried = map(numbering.index, found.retried_steps)
    made: dict[str, Any] = {
        "retried_steps": tuple(one for one in retried if one is not None and one >= 0),
        "phases": {one.path: one for one in found.phases if one.path != LOST_PATH},
        "held": found.held and _with_known_phases(found.held),
        "points": points,
        "out_of_memory_count": max(len(events), found.out_of_memory.count),
        "out_of_memory": events,
    }
    return Memory(**asdict(found) | made)


def _points(found: _Document, numbering: StepNumbering) -> NDArray[np.void]:
    """Memory at the end of those steps whose index is known."""
    points = []
    for serial, allocated, reserved in found.points:
        step = numbering.index(serial)
        # The numbers of the steps are made before it is known which of them will be dropped.
        if step is not None and step >= 0:
            points.append((step, allocated, -1 if reserved is None else reserved))
    return np.array(points, MEMORY_POINT_DTYPE)


def _with_known_phases(holders: _Holders) -> _Holders:
    known = tuple(one for one in holders.phases if one.path != LOST_PATH)
    return dataclasses.replace(holders, phases=known)


def _event(found: OutOfMemory, anchor: Mapping[str, int]) -> OutOfMemory:
    at_ns, run_began_ns = found.time_ns, began_ns(anchor, "monotonic_ns")
    return replace(
        found,
        path=None if found.path == LOST_PATH else found.path,
        time_ns=None if at_ns is None or run_began_ns is None else at_ns - run_began_ns,
        holders=found.holders and _with_known_phases(found.holders),
    )
