# SPDX-License-Identifier: Apache-2.0
"""Sums over operations."""

import numpy as np

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.core.run import Run

ROWS = (
    Operation("aten::mm", "forward", "a", 2, 10, 100, 2),
    Operation("aten::mm", "forward", "b", 4, 30, 10, 4),
    Operation("aten::mm", "backward", "a", 8, 20, 400, 16),
    Operation("aten::relu", "forward", "a", 1, 5, 1, 1),
    Operation("aten::item", None, None, 1, 7, 0, 0),
)


def test_sums_by_operation_module_and_phase() -> None:
    found = Operations(steps=2, operations=ROWS, device=DeviceUse(1, 511, 600))
    assert list(found.by_operation().items()) == [
        (("aten::mm", "backward"), Operation("aten::mm", "backward", None, 8, 20, 400, 16)),
        (("aten::mm", "forward"), Operation("aten::mm", "forward", None, 6, 40, 110, 6)),
        (("aten::item", None), Operation("aten::item", None, None, 1, 7, 0, 0)),
        (("aten::relu", "forward"), Operation("aten::relu", "forward", None, 1, 5, 1, 1)),
    ]
    assert list(found.by_module()) == [
        ("a", "backward"),
        ("a", "forward"),
        ("b", "forward"),
        (None, None),
    ]
    assert {path: one.launches for path, one in found.by_path().items()} == {
        "backward": 16,
        "forward": 7,
        None: 0,
    }
    assert found.launches_per_step("forward") == 3.5
    assert found.launches_per_step("optimizer") == 0


def test_what_no_device_was_seen_doing_is_unknown() -> None:
    rows = (ROWS[0], Operation("aten::mm", "forward", "a", 1, 1, None, None))
    found = Operations(steps=1, operations=rows)
    (sum_of_both,) = found.by_path().values()
    assert (sum_of_both.device_ns, sum_of_both.launches) == (None, None)
    assert found.launches_per_step("forward") is None


def test_which_steps_were_profiled() -> None:
    run = Run(operations=Operations(profiled=((3, 4), (9, 9))))
    assert np.flatnonzero(run.profiled.among(np.arange(12))).tolist() == [3, 4, 9]
