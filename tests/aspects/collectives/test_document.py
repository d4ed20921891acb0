# SPDX-License-Identifier: Apache-2.0
"""The collective operations in a run file."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.collectives.data import (
    COLLECTIVE_DTYPE,
    WAIT_DTYPE,
    Collectives,
    ProcessGroup,
)
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import COLLECTIVE_ITEM, COLLECTIVE_WAIT
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import encode_state
from tests.helpers.run_writer import RunWriter, encode

GROUP = {"name": "0", "description": "default_pg", "ranks": [0, 1], "backend": "gloo"}
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
    waits = np.array([(12, 19, False), (31, 45, True)], WAIT_DTYPE)
    collectives = Collectives(
        groups, ("all_reduce", "send"), events, 7, was_read=True, waits=waits, waits_since_ns=5
    )
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


def test_waits_need_no_group() -> None:
    """As in a pipeline with Gloo, whose sends and receives the flight recorder does not know."""
    document = {"was_read": True, "waits_since_ns": 1}
    run = run_of(document, item(created_ns=4, ended_ns=9, flags=COLLECTIVE_WAIT))
    assert run.collectives.waits.tolist() == [(4, 9, False)]
    assert not len(run.collectives.events)
    assert notes_of(run) == []


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


def test_waits_are_known_since_the_first_that_is_kept() -> None:
    writer = RunWriter(run_id=1, max_slots=3)
    document = {**DOCUMENT, "waits_since_ns": 7}
    writer.write_document(BlockType.COLLECTIVE_GROUPS, json.dumps(document).encode())
    waits = [item(created_ns=t, ended_ns=t + 1, flags=COLLECTIVE_WAIT) for t in range(10, 2010)]
    writer.append(BlockType.COLLECTIVES, waits[:5])
    assert Run.from_bytes(writer.data).collectives.waits_since_ns == 7
    writer.append(BlockType.COLLECTIVES, waits[5:])
    kept = Run.from_bytes(writer.data).collectives
    assert kept.waits_since_ns == kept.waits["begin_ns"][0] == 2010 - len(kept.waits) > 10


@pytest.mark.parametrize(
    "wrong",
    [
        *({"missed": missed} for missed in (-1, 1.5, "3", True, 1 << 60, None)),
        *({"was_read": was_read} for was_read in (None, 0, 1, "true")),
        *({"operations": operations} for operations in (7, [7])),
        *({"notes": notes} for notes in (7, [7])),
        {"groups": {}},
        {"groups": [None]},
        {"groups": [{}]},
        {"groups": [GROUP, {**GROUP, "name": 3}]},
        *({"groups": [{**GROUP, "ranks": ranks}]} for ranks in ("all", [-1], [True], [1 << 31])),
    ],
)
def test_what_makes_no_sense_is_refused_and_said(wrong: Mapping[str, Any]) -> None:
    run = run_of({**DOCUMENT, **wrong}, item())
    assert run.collectives == Collectives()
    (note,) = notes_of(run)
    assert note.startswith("what was noted of collective operations was left out: ")


def test_its_notes_become_notes_of_the_run() -> None:
    run = run_of({"was_read": False, "notes": ["it was not read"]})
    assert run.collectives == Collectives(notes=("it was not read",))
    assert notes_of(run) == ["it was not read"]
