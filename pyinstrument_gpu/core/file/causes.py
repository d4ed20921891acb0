# SPDX-License-Identifier: Apache-2.0
"""The log of what may have made steps slow, of which each aspect knows its own kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.cause import NOTED_DTYPE, NotedCauses
from pyinstrument_gpu.core.file.blocks import Blocks, BlockType, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import CAUSE_ITEM, NONE, columns
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.core.record import Thread


def noted_causes(
    blocks: Blocks, numbering: StepNumbering, threads: Sequence[Thread]
) -> NotedCauses:
    """The items up to the first that can't be true."""
    log = blocks.records(BlockType.CAUSES, CAUSE_ITEM)
    items = log.items
    good = true_prefix(
        (items["begin_ns"] >= 0)
        & (items["begin_ns"] < TIME_LIMIT_NS)
        & (items["time_ns"] >= 0)
        & (items["time_ns"] < TIME_LIMIT_NS)
    )
    cut_ns = None if good == len(items) else int(items["begin_ns"][:good].max(initial=0))
    items = items[:good]
    serials = np.ascontiguousarray(items["step"])
    is_sum = serials != NONE
    # Of a sum whose step is not certain nothing can be said.
    certain = numbering.is_certain(serials, 0)
    steps: NDArray[np.int64] = np.where(is_sum & certain, numbering.indices(serials), -1)
    kept = ~is_sum | (steps >= 0)
    numbers = {thread.native_id: number for number, thread in enumerate(threads)}
    found = columns(
        items,
        NOTED_DTYPE,
        step=steps,
        thread=[numbers.get(one, -1) for one in items["thread"].tolist()],
    )
    since_ns = int(items["begin_ns"][0]) if log.first and len(items) else 0
    return NotedCauses(found[kept], since_ns, cut_ns)
