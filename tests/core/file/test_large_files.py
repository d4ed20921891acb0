# SPDX-License-Identifier: Apache-2.0
"""Files that would take more memory or time than there is, if all that they say were done."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import SLOT_BYTES
from pyinstrument_gpu.core.file.items import NONE
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import encode_text
from tests.helpers.made_recording import Recording
from tests.helpers.run_items import path_item
from tests.helpers.run_writer import RunWriter

GIB = 1 << 30


def test_paths_beyond_the_room_for_their_texts_are_numbered() -> None:
    writer = RunWriter(1)
    writer.append(BlockType.NAMES, [encode_text("n" * 999)])
    writer.append(
        BlockType.PATHS, [path_item(number - 1 if number else NONE, 0) for number in range(2000)]
    )

    paths = Run.from_bytes(writer.data).paths

    assert paths[2] == "/".join(["n" * 999] * 3)
    assert paths[-1] == "%path1999/" + "n" * 256
    assert len(set(paths)) == 2000
    assert sum(map(len, paths)) < 2**25 + 2000 * 300


def test_holes_of_a_file_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gpurun"
    data = Recording(seed=5).final
    path.write_bytes(data)
    os.truncate(path, 40 * GIB)
    if os.stat(path).st_blocks * 512 > GIB:
        pytest.skip("this file system has no holes")

    run = Run.load(path)

    assert np.array_equal(run.spans, Run.from_bytes(data).spans)
    assert run.notes == Run.from_bytes(data).notes


def test_blocks_behind_a_hole_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gpurun"
    data = bytearray(Recording(seed=5, ticks=40).final)
    path.write_bytes(data)
    begin, length = 4096 + 3 * SLOT_BYTES, 100 * SLOT_BYTES
    data[begin : begin + length] = bytes(length)
    with open(path, "r+b") as file:
        file.seek(begin)
        file.truncate()
        file.seek(begin + length)
        file.write(data[begin + length :])

    assert Run.load(path).notes == Run.from_bytes(data).notes
