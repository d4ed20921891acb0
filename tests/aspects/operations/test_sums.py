# SPDX-License-Identifier: Apache-2.0
"""Sums over operations."""

import numpy as np

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.core.run import Run

ROWS = (
    Operation("aten::mm", "forward", 6, 40, 110, 6),
    Operation("aten::mm", "backward", 8, 20, 400, 16),
    Operation("aten::relu", "forward", 1, 5, 1, 1),
    Operation("aten::item", None, 1, 7, 0, 0),
)


def test_sums_by_phase() -> None:
    found = Operations(steps=2, operations=ROWS, device=DeviceUse(1, 511, 600))
    assert found.by_phase() == (
        Operation(None, "backward", 8, 20, 400, 16),
        Operation(None, "forward", 7, 45, 111, 7),
        Operation(None, None, 1, 7, 0, 0),
    )
    assert found.launches_per_step("forward") == 7
    assert found.launches_per_step("optimizer") == 0


def test_what_no_device_was_seen_doing_is_unknown() -> None:
    rows = (ROWS[0], Operation("aten::relu", "forward", 1, 1, None, None))
    found = Operations(steps=1, operations=rows)
    (sum_of_both,) = found.by_phase()
    assert (sum_of_both.device_ns, sum_of_both.launches) == (None, None)
    assert found.launches_per_step("forward") is None


def test_which_steps_were_profiled() -> None:
    run = Run(operations=Operations(profiled=((3, 4), (9, 9))))
    assert np.flatnonzero(run.profiled.among(np.arange(12))).tolist() == [3, 4, 9]
