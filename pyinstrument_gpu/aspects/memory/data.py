# SPDX-License-Identifier: Apache-2.0
"""Memory of a run: by phase, over steps, and when there was none left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MEMORY_POINT_DTYPE = np.dtype(
    [("step", np.int64), ("allocated_bytes", np.int64), ("reserved_bytes", np.int64)]
)
"""Memory at the end of a step: the step's index, and bytes; reserved ones are -1 if unknown."""


@dataclass(frozen=True)
class MedianBytes:
    """The median of what was read, in bytes, and an interval that holds the true one in at least
    95 % of cases, as long as what was read is independent."""

    median: int
    low: int
    high: int


@dataclass(frozen=True)
class PhaseMemory:
    """Memory around the calls of one phase, in the steps that were read.

    Attributes:
        calls: How many calls were read.
        steps: How many steps with such calls.
        begin_bytes: What was allocated when a call began, on average.
        end_bytes: What was allocated when it ended, on average.
        peak_bytes: The most that was allocated during a call, as far as it is known.
        peak_is_exact: Whether no call that was read had more than `peak_bytes`; otherwise some may
            have.
        left_bytes: What the phase left behind per step, phases within included; below 0, what it
            freed. None after fewer than six steps.
        own_left_bytes: The same without phases within.
    """

    calls: int
    steps: int
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_is_exact: bool
    left_bytes: MedianBytes | None
    own_left_bytes: MedianBytes | None


@dataclass(frozen=True)
class OutOfMemory:
    """One time that the allocator of a device had no memory left.

    What is not known is None.

    Attributes:
        path: The innermost phase that was open.
        step: Index of the step that was open.
        module: The module that was running.
        device: Number of the device.
        request_bytes: What was asked for.
        limit_bytes: What the process may have at most: the device's memory, or a part of it.
        free_bytes: What was free on the device.
        allocated_bytes: What tensors occupied.
        reserved_bytes: What the allocator held, for tensors or for later.
        time_ns: When it was, since the run began.
        settings: PYTORCH_ALLOC_CONF, or PYTORCH_CUDA_ALLOC_CONF.
    """

    path: str | None
    step: int | None
    module: str | None
    device: int
    request_bytes: int
    limit_bytes: int
    free_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    time_ns: int | None
    settings: str | None


@dataclass(frozen=True)
class Memory:
    """Memory in those steps of a run that were read.

    Attributes:
        device: Number of the device; None: it is the memory of the process that is resident.
        steps: How many steps were read.
        lost: How many readings failed, or had to be left out.
        peak_bytes: The most that was allocated at any time so far, by the allocator's own counter,
            which may have been reset before the first step was read.
        reserved_peak_bytes: The same of what was reserved; None if that is unknown.
        phases: The phases in those steps, by path.
        phases_lost: Calls of phases that are not in `phases`, because there were too many paths.
        outside_left_bytes: What the steps left behind outside all phases.
        points: Memory at the end of steps, in the columns of `MEMORY_POINT_DTYPE`: of those that
            were read all, or every so many.
        out_of_memory_count: How often a device had no memory left.
        out_of_memory: The first of these times, and the last.
        notes: What could not be recorded as requested, in sentences.
    """

    device: int | None = None
    steps: int = 0
    lost: int = 0
    peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    phases: Mapping[str, PhaseMemory] = field(default_factory=dict)
    phases_lost: int = 0
    outside_left_bytes: MedianBytes | None = None
    points: NDArray[np.void] = field(default_factory=lambda: np.empty(0, MEMORY_POINT_DTYPE))
    out_of_memory_count: int = 0
    out_of_memory: Sequence[OutOfMemory] = ()
    notes: tuple[str, ...] = ()
