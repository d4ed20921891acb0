# SPDX-License-Identifier: Apache-2.0
"""The OPERATIONS document."""

import json
from typing import Any

import pytest
from msgspec import to_builtins

from pyinstrument_gpu.aspects.operations.data import (
    DeviceUse,
    Operation,
    Operations,
    decode_operations,
)
from pyinstrument_gpu.errors import RunFileDamagedError

OPERATIONS = Operations(
    profiled=((3, 5), (9, 9)),
    first_step=9,
    last_step=9,
    steps=1,
    operations=(
        Operation("aten::mm", "forward/attn", 4, 100, 900, 4),
        Operation("\udcff", None, 1, 7, None, None),
        Operation(None, "forward", 1, 0, 0, 0),
    ),
    device=DeviceUse(2, 900, 1_000),
    stopped_ns=12,
    trace="/tmp/a.json",
    notes=("a note",),
)

ROW = to_builtins(OPERATIONS.operations[0])


def decode(document: Any) -> Operations:
    return decode_operations(json.dumps(document).encode())


@pytest.mark.parametrize("operations", [OPERATIONS, Operations()])
def test_what_is_written_is_read(operations: Operations) -> None:
    assert decode(to_builtins(operations)) == operations


def test_files_of_earlier_versions_have_rows_of_modules_and_gaps_of_devices() -> None:
    rows = [
        ["aten::mm", "forward", "head", 1, 2, 3, 4],
        ["aten::mm", "forward", None, 10, 20, 30, 40],
    ]
    device = {"devices": 1, "busy_ns": 3, "elapsed_ns": 4, "gaps": [["forward", 1, 1, 1]]}
    earlier = {"steps": 2, "operations": rows, "annotations_ns": 3, "device": device}
    found = decode({**to_builtins(OPERATIONS), **earlier})
    assert found.operations == (Operation("aten::mm", "forward", 5.5, 11, 16.5, 22),)
    assert found.device == DeviceUse(1, 3, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"profiled": [[5, 3]]},
        {"first_step": -1},
        {"steps": None},
        {"operations": [{"name": "aten::mm", "path": "forward", "calls": 1, "host_ns": 2}]},
        {"operations": [{**ROW, "name": 3}]},
        {"operations": [{**ROW, "launches": 1 << 63}]},
        {"operations": [{**ROW, "host_ns": -1}]},
        {"operations": [["aten::mm", "forward", None, 1, 2, 3]]},
        {"stopped_ns": True},
        {"device": {"devices": 1, "busy_ns": 5, "elapsed_ns": 4}},
        {"notes": [3]},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    document = {**to_builtins(OPERATIONS), **wrong}
    with pytest.raises(RunFileDamagedError, match="OPERATIONS"):
        decode(document)
