# SPDX-License-Identifier: Apache-2.0
"""What is known of a program, from a run's environment."""

import json

from pyinstrument_gpu.core.file.environment import decode_environment
from pyinstrument_gpu.core.program_facts import KEY

KNOWN = {"loader_workers": 2, "loader_pins": False, "other_streams": True, "ranks": 8}


def test_what_was_written_is_read() -> None:
    written = {KEY: {**KNOWN, "of a later version": 1}}
    assert decode_environment(json.dumps(written).encode()) == ({KEY: KNOWN}, ())


def test_numbers_of_workers_that_no_machine_has_are_left_out() -> None:
    for name, number in (("loader_workers", 1 << 16), ("loader_prefetch", 1 << 31)):
        written = {KEY: {**KNOWN, name: number}}
        assert decode_environment(json.dumps(written).encode()) == ({}, (KEY,))
