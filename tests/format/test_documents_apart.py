# SPDX-License-Identifier: Apache-2.0
"""Documents that the rest of a run does not rest on."""

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.model.collectives import Collectives
from pyinstrument_gpu.native import native


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("operations", "what was profiled"),
        ("memory", "what was noted of memory"),
        ("energy", "what was noted of energy"),
        ("collective_groups", "what was noted of collective operations"),
    ],
)
@pytest.mark.parametrize("damaged", [b"{", b"[]", b"\xff"])
def test_one_that_is_damaged_is_left_out_alone(name: str, what: str, damaged: bytes) -> None:
    with pig.record(memory=False) as recording, pig.gpu_step(), pig.gpu_phase("forward"):
        native.set_document(recording, name, damaged)
    run = recording.run
    assert getattr(run, name, None) in (None, ())
    assert run.collectives == Collectives()
    assert any(note.startswith(f"{what} was left out") for note in run.notes)
    assert run.phases["forward"].count == 1
