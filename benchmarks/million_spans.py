# SPDX-License-Identifier: Apache-2.0
"""A run of a million spans, like that of a training loop: six phases a step, one of them nested."""

from pathlib import Path

import pyinstrument_gpu as pig
from benchmarks.effort import size
from pyinstrument_gpu import gpu_phase, gpu_steps
from pyinstrument_gpu.native import native

STEPS = size(166_667, 1_667)
_STEPS_BETWEEN_FLUSHES = 1000


def record_million_spans(path: Path) -> None:
    """Writes the run file; all spans are in it."""
    with pig.record(path) as recording:
        for step in gpu_steps(range(STEPS), samples=16):
            with gpu_phase("forward"), gpu_phase("attention"):
                pass
            with gpu_phase("backward"):
                pass
            with gpu_phase("optimizer"):
                pass
            with gpu_phase("metrics"):
                pass
            # Steps of a microsecond: without this the ring would overflow.
            if step % _STEPS_BETWEEN_FLUSHES == 0:
                native.flush(0)
    assert len(recording.run.spans) == recording.run.phases_recorded >= 6 * STEPS
