# SPDX-License-Identifier: Apache-2.0
"""Run files of a few items, made by hand."""

import numpy as np

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.items import (
    NONE,
    SPAN_ITEM,
)
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import encode_state, encode_text, encode_thread
from tests.helpers.run_writer import RunWriter


def written(state: State | None, **logs: list[bytes]) -> Run:
    """The run of a STATE and some logs, each a list of items by the name of its type."""
    writer = RunWriter(run_id=1)
    for name, items in logs.items():
        writer.append(BlockType[name], items)
    if state is not None:
        writer.write_document(BlockType.STATE, encode_state(state))
    return Run.from_bytes(writer.data)


def span_item(**fields: int) -> bytes:
    item = np.zeros(1, SPAN_ITEM)
    item["step"] = NONE
    for name, value in fields.items():
        item[name] = value
    return item.tobytes()


def path_item(parent: int, name: int) -> bytes:
    return np.array([parent, name], dtype="<u4").tobytes()


ONE_PHASE = {
    "NAMES": [encode_text("a")],
    "PATHS": [path_item(NONE, 0)],
    "THREADS": [encode_thread(Thread(7, "main"))],
}
