# SPDX-License-Identifier: Apache-2.0
"""What may be null in a document may also be missing."""

import json

from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.core.file.state import State, decode_state
from tests.helpers.encoders import encode_json, encode_state
from tests.helpers.whole_documents import DEVICE, DOCUMENTS


def test_gaps_of_a_device() -> None:
    whole = DOCUMENTS[BlockType.OPERATIONS]
    device = {name: value for name, value in whole["device"].items() if name != "gaps"}
    operations = decode_object(encode_json({**whole, "device": device}), "OPERATIONS", Operations)
    assert operations.device is not None
    assert operations.device.gaps == ()


def test_device_times_that_wait() -> None:
    device = {name: value for name, value in DEVICE.items() if name != "pending"}
    state = decode_state(encode_json({**json.loads(encode_state(State())), "device": device}))
    assert state.device is not None
    assert state.device.pending == ()
