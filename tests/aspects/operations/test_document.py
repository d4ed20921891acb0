# SPDX-License-Identifier: Apache-2.0
"""The OPERATIONS document."""

import json
from typing import Any

import pytest
from msgspec import to_builtins

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.errors import RunFileDamagedError

OPERATIONS = Operations(
    profiled=((3, 5), (9, 9)),
    first_step=9,
    last_step=9,
    steps=1,
    operations=(
        Operation("aten::mm", "forward/attn", "layers.*.attn", 4, 100, 900, 4),
        Operation("\udcff", None, None, 1, 7, None, None),
        Operation(None, "forward", None, 1, 0, 0, 0),
    ),
    annotations_ns=3,
    device=DeviceUse(2, 900, 1_000),
    stopped_ns=12,
    modules_unknown="because",
    trace="/tmp/a.json",
    notes=("a note",),
)


def decode(document: Any) -> Operations:
    return decode_object(json.dumps(document).encode(), "OPERATIONS", Operations)


@pytest.mark.parametrize("operations", [OPERATIONS, Operations()])
def test_what_is_written_is_read(operations: Operations) -> None:
    assert decode(to_builtins(operations)) == operations


def test_gaps_of_a_device_in_older_files_are_left_alone() -> None:
    device = {"devices": 1, "busy_ns": 3, "elapsed_ns": 4, "gaps": [["forward", 1, 1, 1]]}
    assert decode({"device": device}).device == DeviceUse(1, 3, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"profiled": [[5, 3]]},
        {"first_step": -1},
        {"steps": None},
        {"operations": [["aten::mm", "forward", None, 1, 2, 3]]},
        {"operations": [[3, "forward", None, 1, 2, None, None]]},
        {"operations": [["aten::mm", "forward", None, 1, 2, None, 1 << 63]]},
        {"annotations_ns": True},
        {"device": {"devices": 1, "busy_ns": 5, "elapsed_ns": 4}},
        {"notes": [3]},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    document = {**to_builtins(OPERATIONS), **wrong}
    with pytest.raises(RunFileDamagedError, match="OPERATIONS"):
        decode(document)
