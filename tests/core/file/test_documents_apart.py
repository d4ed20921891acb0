# SPDX-License-Identifier: Apache-2.0
"""Documents that the rest of a run does not rest on."""

import pytest

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import encode_state
from tests.helpers.run_items import ONE_PHASE, span_item
from tests.helpers.run_writer import RunWriter


@pytest.mark.parametrize(
    ("block_type", "what"),
    [
        (BlockType.OPERATIONS, "what was profiled"),
        (BlockType.MEMORY, "what was noted of memory"),
        (BlockType.ENERGY, "what was noted of energy"),
        (BlockType.COLLECTIVE_GROUPS, "what was noted of collective operations"),
        (BlockType.STALLS, "what was noted of stalls"),
    ],
)
@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff"])
def test_one_that_is_damaged_is_left_out_alone(
    block_type: BlockType, what: str, damaged: bytes
) -> None:
    writer = RunWriter(run_id=1)
    for name, items in {**ONE_PHASE, "SPANS": [span_item()]}.items():
        writer.append(BlockType[name], items)
    writer.write_document(BlockType.STATE, encode_state(State(spans=1, phases_recorded=1)))
    writer.write_document(block_type, damaged)
    run = Run.from_bytes(writer.data)
    assert (run.operations, run.memory, run.energy, run.stalls) == (None, None, (), ())
    assert run.collectives == Collectives()
    assert [note for note in run.notes if note.startswith(f"{what} was left out: ")]
    assert run.phases["a"].count == 1
