# SPDX-License-Identifier: Apache-2.0
"""The collective operations in a run file."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.collectives.data import COLLECTIVE_DTYPE, Collectives, ProcessGroup
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import COLLECTIVE_ITEM
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import encode_state
from tests.helpers.run_writer import RunWriter, encode

GROUP = {"name": "0", "description": "default_pg", "ranks": [0, 1], "backend": "gloo"}
LEFT_OUT = (
    "1 parts of what was noted of collective operations were left out, because they make no sense"
)
DOCUMENT = {"was_read": True, "missed": 3, "groups": [GROUP], "operations": ["all_reduce"]}


def item(**fields: int) -> bytes:
    one = np.zeros(1, COLLECTIVE_ITEM)
    for name in ("started_ns", "ended_ns", "duration_ns"):
        one[name] = -1
    for name, value in fields.items():
        one[name] = value
    return one.tobytes()


def run_of(document: Any, *items: bytes, **state: Any) -> Run:
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.COLLECTIVE_GROUPS, json.dumps(document).encode())
    writer.append(BlockType.COLLECTIVES, [*items])
    known = State(final=True, **{"collectives": len(items), **state})
    writer.write_document(BlockType.STATE, encode_state(known))
    return Run.from_bytes(writer.data)


def notes_of(run: Run) -> list[str]:
    return [note for note in run.notes if "facts about" not in note and "statistics" not in note]


def test_what_was_written_is_read() -> None:
    events = np.zeros(3, COLLECTIVE_DTYPE)
    events["created_ns"] = 10, 20, 30
    events["started_ns"] = -1, 21, 31
    events["sequence"] = 1, 2, 1
    events["group"] = 0, 0, 1
    events["operation"] = 0, 1, 0
    events["is_p2p"] = False, False, True
    groups = (ProcessGroup("0", "default_pg", (0, 1), "gloo"), ProcessGroup("1", "", None, "nccl"))
    collectives = Collectives(groups, ("all_reduce", "send"), events, 7, was_read=True)
    run = Run.from_bytes(encode(Run(collectives=collectives, environment={"host": "a"})))
    assert run.collectives == collectives
    assert run.notes == ()


def test_operations_are_in_the_order_in_which_they_were_created() -> None:
    # The end of the first was waited for; when the third was created is not known.
    times = 20, 30, -1, 10, 40
    run = run_of(DOCUMENT, *(item(created_ns=time, sequence=i) for i, time in enumerate(times)))
    assert run.collectives.events["sequence"].tolist() == [3, 0, 1, 2, 4]
    assert run.collectives.missed == 3
    assert notes_of(run) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": 1},
        {"operation": 1},
        {"created_ns": -2},
        {"ended_ns": 1 << 61},
        {"sequence": -1},
        {"bytes": -2},
    ],
)
def test_operations_end_before_the_first_that_cannot_be_true(wrong: Mapping[str, int]) -> None:
    run = run_of(DOCUMENT, item(created_ns=1), item(**wrong), item(created_ns=3))
    assert run.collectives.events["created_ns"].tolist() == [1]
    assert run.collectives.missed == 3 + 2
    assert notes_of(run) == ["missing at the end of the history: 2 collective operations"]


def test_operations_that_were_lost_are_missed() -> None:
    run = run_of(DOCUMENT, item(), collectives=5)
    assert run.collectives.missed == 3 + 4


def test_old_operations_that_made_room_are_missed() -> None:
    writer = RunWriter(run_id=1, max_slots=3)
    writer.write_document(BlockType.COLLECTIVE_GROUPS, json.dumps(DOCUMENT).encode())
    writer.append(BlockType.COLLECTIVES, [item(created_ns=time) for time in range(2000)])
    kept = Run.from_bytes(writer.data).collectives
    assert 0 < len(kept.events) < 2000
    assert kept.missed == 3 + 2000 - len(kept.events)
    assert kept.events["created_ns"][-1] == 1999


@pytest.mark.parametrize(
    "group",
    [
        None,
        {},
        {**GROUP, "name": 3},
        {**GROUP, "name": "a\x1bb"},
        {**GROUP, "name": "a" * 201},
        {**GROUP, "ranks": "all"},
        {**GROUP, "ranks": [-1]},
        {**GROUP, "ranks": [True]},
        {**GROUP, "ranks": [1 << 31]},
    ],
)
def test_a_group_that_makes_no_sense_keeps_its_place(group: Any) -> None:
    run = run_of({**DOCUMENT, "groups": [group, GROUP]}, item(group=1))
    strange, known = run.collectives.groups
    assert (strange.name, strange.ranks) == ("?", None)
    assert known == ProcessGroup("0", "default_pg", (0, 1), "gloo")
    assert len(run.collectives.events) == 1
    assert notes_of(run) == [LEFT_OUT]


@pytest.mark.parametrize("missed", [-1, 1.5, "3", True, 1 << 60, None])
def test_a_strange_count_of_the_missed_is_left_out(missed: Any) -> None:
    run = run_of({**DOCUMENT, "missed": missed})
    assert run.collectives.missed == 0
    assert notes_of(run) == [LEFT_OUT]


@pytest.mark.parametrize("was_read", [None, 0, 1, "true", False])
def test_only_true_says_that_the_flight_recorder_was_read(was_read: Any) -> None:
    assert not run_of({**DOCUMENT, "was_read": was_read}).collectives.was_read


def test_its_notes_become_notes_of_the_run() -> None:
    run = run_of({"was_read": False, "notes": ["it was not read", "a\nb"]})
    assert run.collectives == Collectives()
    assert notes_of(run) == [LEFT_OUT, "it was not read"]


def test_operations_without_names_are_missed() -> None:
    document = {**DOCUMENT, "operations": 7, "groups": {}}
    run = run_of(document, item())
    assert run.collectives.events.shape == (0,)
    assert run.collectives.missed == 4
