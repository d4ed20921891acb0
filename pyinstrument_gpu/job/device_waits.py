# SPDX-License-Identifier: Apache-2.0
"""How long the devices of ranks wait for each other, by the durations of collective operations.

The kernels of an operation are done at the same moment on all ranks, and each has lasted since its
own rank was ready for it. So by how much the shortest duration is exceeded is what a rank waited.
Several operations of a step overlap with computing and with each other: the waits in them can't be
added up, and the longest of them is what the step has waited at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.distinct import distinct
from pyinstrument_gpu.job.joined import Joined
from pyinstrument_gpu.job.matched import MatchedGroup


@dataclass(frozen=True, eq=False)
class DeviceWaits:
    """Waits on devices.

    Attributes:
        steps: places of the steps in `Joined.steps` that have such an operation.
        waits_ns: by rank and step the longest wait.
        paths: for each path whether operations are asked for in it.
    """

    steps: NDArray[np.intp]
    waits_ns: NDArray[np.float64]
    paths: NDArray[np.bool_]


def device_waits(joined: Joined, groups: Sequence[MatchedGroup]) -> DeviceWaits | None:
    """None if durations are not known of operations of all ranks together."""
    waits_ns = np.full((len(joined.ranks), len(joined.steps)), -1.0)
    paths = np.zeros(len(joined.paths), dtype=bool)
    for group in groups:
        if not group.group.is_on_stream or len(group.places) != len(joined.ranks):
            continue
        durations_ns = group.events["duration_ns"]
        column = np.minimum(np.searchsorted(joined.steps, group.steps), len(joined.steps) - 1)
        chosen = group.are_symmetric & (joined.steps[column] == group.steps)
        chosen &= np.logical_and.reduce(durations_ns >= 0, 0)
        chosen_ns, column = durations_ns[:, chosen], column[chosen]
        for of_rank_ns, longer_ns in zip(waits_ns, chosen_ns - chosen_ns.min(axis=0), strict=True):
            np.maximum.at(of_rank_ns, column, longer_ns)
        asked_in = {group.first.paths[path] for path in distinct(group.path[chosen]) if path >= 0}
        paths |= np.array([path in asked_in for path in joined.paths], dtype=bool)
    steps = np.flatnonzero(waits_ns[0] >= 0)
    if not len(steps):
        return None
    return DeviceWaits(steps, waits_ns[:, steps], paths)


def usual_stream_ns(joined: Joined, found: DeviceWaits) -> NDArray[np.float64] | None:
    """By path and rank the mean stream time in the steps that were timed, without waits for other
    ranks; 0 for phases around others, whose time is in these. None if not all ranks were timed."""
    usual_ns = np.zeros((len(joined.paths), len(joined.ranks)))
    for row, path in enumerate(joined.paths[:-2]):
        if any(other.startswith(f"{path}/") for other in joined.paths[:-2]):
            continue
        means_ns = joined.stream_means_ns(path)
        has_path = [path in rank.paths for rank in joined.ranks]
        if np.isnan(means_ns[has_path]).any():
            return None
        usual_ns[row] = np.nan_to_num(means_ns)
    waiting = np.flatnonzero(found.paths[:-2])
    if len(waiting):
        longest = waiting[np.argmax(usual_ns[waiting].sum(axis=1))]
        usual_ns[longest] = np.maximum(usual_ns[longest] - found.waits_ns.mean(axis=1), 0)
    return usual_ns if usual_ns.any() else None
