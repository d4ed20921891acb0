# SPDX-License-Identifier: Apache-2.0
"""Documents of a run file with all that they may say, and files that have other ones."""

import json
from typing import Any

from pyinstrument_gpu.core.file.blocks import BlockType
from tests.helpers.forged_file import with_block

_MS = 1_000_000
_BEGAN_NS = 10**12

_OPERATIONS = {
    "profiled": [[1, 2]],
    "first_step": 1,
    "last_step": 2,
    "steps": 2,
    "operations": [
        {
            "name": "aten::mm",
            "path": "forward",
            "calls": 4,
            "host_ns": 5 * _MS,
            "device_ns": 3 * _MS,
            "launches": 4,
        },
        ["aten::mm", "backward", "net.fc", 1, 1, None, None],  # as in files of earlier versions
    ],
    "device": {"devices": 1, "busy_ns": 5 * _MS, "elapsed_ns": 10 * _MS},
    "stopped_ns": 5,
    "trace": "trace.json",
    "notes": ["a note"],
}

_PHASE = {
    "path": 0,
    "calls": 4,
    "steps": 4,
    "begin_bytes": 10,
    "end_bytes": 20,
    "peak_bytes": 30,
    "peak_is_exact": True,
    "left_bytes": [5, 4, 6],
    "own_left_bytes": [5, 4, 6],
}
_EVENT = {
    "path": 0,
    "device": 0,
    "request_bytes": 10,
    "limit_bytes": 100,
    "free_bytes": 5,
    "step": 1,
    "allocated_bytes": 5,
    "reserved_bytes": 6,
    "module": "net.fc",
    "settings": "expandable",
    "holders": {
        "parameters_bytes": 2,
        "gradients_bytes": 1,
        "buffers_bytes": 1,
        "optimizer_state_bytes": 1,
        "activations_bytes": 4,
        "modules": [{"name": "net.fc", "bytes": 3}],
        "activation_modules": [{"name": "net.fc", "bytes": 4}],
        "phases": [[0, 4]],
        "unseen": 1,
    },
    "snapshot": "a.gpurun.oom.pickle",
    "monotonic_ns": _BEGAN_NS + 20 * _MS,
}
_HELD = {
    **_EVENT["holders"],  # type: ignore[dict-item]
    "inputs_bytes": 1,
    "allocated_bytes": 10,
}
_MEMORY = {
    "steps": 4,
    "lost": 0,
    "phases_lost": 0,
    "device": 0,
    "peak_bytes": 100,
    "reserved_peak_bytes": 200,
    "phases": [_PHASE, {**_PHASE, "path": 1}],
    "outside_left_bytes": [1, 0, 2],
    "points": [[0, 10, 20], [1, 20, None], [2, 30, 40], [3, 40, 50]],
    "out_of_memory": {"count": 2, "events": [_EVENT]},
    "held": {
        "step": 1,
        "begin": _HELD,
        "end": _HELD,
        "activation_modules": [{"name": "net.fc", "bytes": 3}],
        "phases": [[0, 2], [None, 1]],
        "optimizers": 1,
        "unseen": 0,
        "cost_ns": 1000,
    },
    "notes": ["a note"],
}

_SAMPLES = [[_BEGAN_NS + number * 5 * _MS, number * 100] for number in range(11)]
_ENERGY = {"gpus": [{"device": 0, "uuid": "GPU-0", "samples": _SAMPLES}]}

DOCUMENTS: dict[BlockType, dict[str, Any]] = {
    BlockType.OPERATIONS: _OPERATIONS,
    BlockType.MEMORY: _MEMORY,
    BlockType.ENERGY: _ENERGY,
}
"""By type, as JSON. They fit a run of a few paths and steps that began at 10^12 ns of the monotonic
clock."""

DEVICE = {"every": 2, "records": 8, "record_ns": 900, "pending": [[0, 1]]}
"""What STATE says of device timing."""


def with_document(data: bytes, block_type: BlockType, document: dict[str, Any]) -> bytes:
    """A file of the run 1 with a newer version of a document, which takes one block."""
    return with_block(data, block_type, json.dumps(document).encode())
