# SPDX-License-Identifier: Apache-2.0
"""The table: every group of faults, in the order of tests/faults/README.md."""

from tests.faults import (
    damaged_file,
    descriptors,
    fork,
    full_disk,
    hostile_file,
    hung_gpu,
    kill,
    memory,
    signals,
    threads,
)

GROUPS = (
    kill.FAULTS,
    full_disk.FAULTS,
    descriptors.FAULTS,
    fork.FAULTS,
    threads.FAULTS,
    signals.FAULTS,
    memory.FAULTS,
    hung_gpu.FAULTS,
    damaged_file.FAULTS,
    hostile_file.FAULTS,
)
