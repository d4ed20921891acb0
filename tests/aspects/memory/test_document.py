# SPDX-License-Identifier: Apache-2.0
"""The MEMORY document, which is refused as a whole where something in it makes no sense."""

import json
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.memory.data import MedianBytes, Memory, decode_memory
from pyinstrument_gpu.core.file.steps import StepNumbering
from pyinstrument_gpu.errors import RunFileDamagedError

NUMBERING = StepNumbering(np.array([1], np.uint32), certain_serial=10, dropped_all_known=True)
PATHS = ("data", "train", "train/forward")
PHASE = {
    "path": 2,
    "calls": 4,
    "steps": 2,
    "begin_bytes": 10,
    "end_bytes": 20,
    "peak_bytes": 30,
    "peak_is_exact": True,
    "left_bytes": [-5, -6, -4],
    "own_left_bytes": None,
}
EVENT = {
    "path": 1,
    "step": 3,
    "module": "layers.0",
    "device": 1,
    "request_bytes": 1,
    "limit_bytes": 2,
    "free_bytes": 0,
    "allocated_bytes": 1,
    "reserved_bytes": None,
    "monotonic_ns": 1500,
    "settings": None,
}
HELD = {
    "step": 1,
    "begin": {"parameters_bytes": 5, "activations_bytes": 7, "allocated_bytes": 15},
    "end": {"parameters_bytes": 5, "gradients_bytes": 4, "modules": [{"name": "head", "bytes": 9}]},
    "activation_modules": [{"name": "head", "bytes": 7}],
    "phases": [[1, 4], [9, 2], [None, 1]],
    "optimizers": 0,
    "unseen": 3,
    "cost_ns": 10,
}
DOCUMENT = {
    "source": "device",
    "device": 1,
    "steps": 2,
    "lost": 0,
    "peak_bytes": 30,
    "reserved_peak_bytes": 40,
    "points": [[0, 10, 40], [2, 20, None]],
    "phases": [PHASE],
    "phases_lost": 0,
    "outside_left_bytes": [0, 0, 0],
    "out_of_memory": {"count": 5, "events": [EVENT]},
    "held": HELD,
}


def decode(document: Any) -> Memory:
    anchor = {"monotonic_ns": 1000, "run_ns": 7}
    return decode_memory(json.dumps(document).encode(), PATHS, NUMBERING, anchor)


def test_all_of_it() -> None:
    memory = decode(DOCUMENT)
    assert (memory.device, memory.steps, memory.peak_bytes) == (1, 2, 30)
    assert memory.phases["train/forward"].left_bytes == MedianBytes(-5, -6, -4)
    # The step with serial number 1 was dropped.
    assert memory.points.tolist() == [(0, 10, 40), (1, 20, -1)]
    (event,) = memory.out_of_memory
    assert (event.path, event.module, event.time_ns) == ("train", "layers.0", 507)
    assert memory.out_of_memory_count == 5
    held = memory.held
    assert held is not None
    assert (held.step, held.unseen) == (1, 3)
    assert held.most is held.begin
    assert held.end is not None
    assert (held.begin.activations_bytes, held.end.gradients_bytes) == (7, 4)
    # The file has lost a path.
    assert [(one.path, one.bytes) for one in held.phases] == [("train", 4), (None, 1)]


@pytest.mark.parametrize("document", [{}, {"out_of_memory": {"count": 1, "events": [EVENT]}}])
def test_most_may_be_missing(document: Any) -> None:
    memory = decode(document)
    assert (memory.steps, memory.peak_bytes) == (0, None)


def test_what_refers_to_a_path_that_the_file_lost_has_none() -> None:
    phases, events = [PHASE, {**PHASE, "path": 3}], [{**EVENT, "path": 3}]
    memory = decode({**DOCUMENT, "phases": phases, "out_of_memory": {"events": events}})
    assert [*memory.phases] == ["train/forward"]
    assert [event.path for event in memory.out_of_memory] == [None]


@pytest.mark.parametrize(
    "key, value",
    [
        ("device", "x"),
        ("lost", 1.5),
        ("peak_bytes", True),
        ("points", [[0, 1]]),
        ("points", [[0, -1, 2]]),
        ("points", [[3, 1, 1], [0, 1, 1]]),
        ("phases", [{**PHASE, "calls": -1}]),
        ("phases", [{**PHASE, "left_bytes": [1, 2]}]),
        ("phases", [{**PHASE, "left_bytes": [1, 2, 3]}]),
        ("points", [[step, 1, None] for step in range(2, 1003)]),
        ("held", {**HELD, "begin": None}),
        ("held", {**HELD, "end": {"inputs_bytes": -1}}),
        ("held", {**HELD, "phases": [[-1, 2]]}),
        ("out_of_memory", {"events": [1]}),
        ("out_of_memory", {"events": [{**EVENT, "device": None}]}),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Any) -> None:
    with pytest.raises(RunFileDamagedError, match="MEMORY"):
        decode({**DOCUMENT, key: value})
