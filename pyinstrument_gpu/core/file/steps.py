# SPDX-License-Identifier: Apache-2.0
"""The steps of a run, and their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Records, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import (
    NONE,
    STEP_COMPLETE,
    STEP_SAMPLED,
    STEP_WEIGHT_SHIFT,
    columns,
)
from pyinstrument_gpu.core.file.state import OpenStepState, State
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.errors import RunFileDamagedError


@dataclass(frozen=True)
class StepNumbering:
    """Turns the serial numbers of steps into the indices that users see.

    An index is certain only where all dropped steps below it are known. The log of dropped steps
    may have been cut, so that has to be shown: by a later dropped step, by a closed step whose
    serial number leaves room for no other dropped step than those known, or by a STATE that counts
    no more of them and was written after the item in question.
    """

    dropped: NDArray[np.uint32]
    certain_serial: int
    dropped_all_known: bool

    @classmethod
    def of(cls, dropped: NDArray[np.uint32], steps: Records, state: State) -> StepNumbering:
        if len(dropped) and not (dropped[:-1] < dropped[1:]).all():
            raise RunFileDamagedError("the DROPPED_STEPS block of the run file is not ascending")
        serials = steps.items["serial"].astype(np.int64)
        dropped_below = np.searchsorted(dropped, steps.items["serial"])
        full = serials - dropped_below == steps.first + np.arange(len(serials))
        certain = max(int(dropped[-1]) if len(dropped) else -1, int(serials[full].max(initial=-1)))
        return cls(dropped, certain, len(dropped) >= state.step_drops)

    def is_certain(self, serials: NDArray[np.uint32], items_before_state: int) -> NDArray[np.bool_]:
        """Return whether the index of each step is certain, for items of a log in its order, of
        which `items_before_state` were there when STATE was written."""
        certain: NDArray[np.bool_] = serials.astype(np.int64) <= self.certain_serial
        certain |= serials == NONE
        if self.dropped_all_known:
            certain[: max(0, items_before_state)] = True
        return certain

    def indices(self, serials: NDArray[np.uint32]) -> NDArray[np.int64]:
        return indices_of(serials, self.dropped)

    def index(self, serial: int) -> int | None:
        """The index of a step that STATE names: -1 for a dropped one, None when not certain."""
        if not (self.dropped_all_known or serial <= self.certain_serial):
            return None
        return int(self.indices(np.array([serial], dtype=np.uint32))[0])


def indices_of(serials: NDArray[Any], dropped: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The index of each step; -1 for none and for one that was dropped. `dropped` are the serial
    numbers of all dropped steps below them, ascending."""
    below = np.searchsorted(dropped, serials)
    at = np.searchsorted(dropped, serials, side="right")
    return np.where((serials == NONE) | (at > below), -1, serials.astype(np.int64) - below)


def is_behind_its_step(
    steps: NDArray[np.void], indices: NDArray[np.int64], begins_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether what began at these times, in the steps with these indices, began after their
    end. A step may turn out to have ended before what went on while nobody knew."""
    if not len(steps):
        return np.zeros(len(indices), dtype=bool)
    position = np.minimum(np.searchsorted(steps["index"], indices), len(steps) - 1)
    is_its = steps["index"][position] == indices
    behind: NDArray[np.bool_] = is_its & (begins_ns > steps["end_ns"][position])
    return behind


def step_columns(items: NDArray[np.void], indices: NDArray[np.int64]) -> NDArray[np.void]:
    return columns(items, STEP_DTYPE, index=indices, complete=items["flags"] & STEP_COMPLETE)


def module_step_weights(items: NDArray[np.void]) -> NDArray[np.int64] | None:
    """Return for how many steps the passes through modules in each of these stand; None if they
    were timed in all steps."""
    is_sampled = items["flags"] & STEP_SAMPLED != 0
    if not is_sampled.any():
        return None
    weights: NDArray[np.int64] = (items["flags"] >> STEP_WEIGHT_SHIFT).astype(np.int64)
    return np.where(is_sampled, weights, 1)


def known_steps(
    records: Records, numbering: StepNumbering, threads: int, state: State
) -> NDArray[np.void]:
    """The closed steps up to the first that can't be true."""
    items = records.items
    serials = items["serial"]
    indices = numbering.indices(serials)
    good = true_prefix(
        numbering.is_certain(serials, state.steps - records.first)
        & (indices >= 0)
        & (np.diff(indices, prepend=-1) > 0)
        & (items["thread"] < threads)
        & (items["begin_ns"] >= 0)
        & (items["end_ns"] >= items["begin_ns"])
        & (items["end_ns"] < TIME_LIMIT_NS)
        & ~np.isinf(items["samples"])
    )
    return step_columns(items[:good], indices[:good])


def known_open_step(
    state: OpenStepState | None,
    numbering: StepNumbering,
    records: Records,
    steps: NDArray[np.void],
    threads: int,
) -> Step | None:
    """The step that STATE says is open, as far as that is still true and its index certain; `steps`
    are those of the records that are known."""
    if state is None or state.thread >= threads:
        return None
    if len(records.items) and state.serial <= records.items["serial"][-1]:
        return None  # it was closed after STATE was written
    index = numbering.index(state.serial)
    if index is None or index <= steps["index"].max(initial=-1):
        return None
    return Step(index, state.begin_ns, -1, state.samples, state.items, False, state.thread)
