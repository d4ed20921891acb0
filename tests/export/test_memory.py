# SPDX-License-Identifier: Apache-2.0
"""What the formats of a timeline need beside the run. tracemalloc counts numpy's arrays too."""

import io
import tracemalloc
from unittest import mock

import numpy as np
import pytest

from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export import FORMATS, ranges

PHASES = 6


class Nowhere(io.RawIOBase):
    """A stream that keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return memoryview(data).nbytes  # type: ignore[arg-type]


def run_of(steps: int) -> Run:
    """Six phases a step, one of them nested, and one around all steps."""
    begins_ns = np.arange(steps, dtype=np.int64) * 1000
    spans = np.zeros(steps * PHASES, SPAN_DTYPE)
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        spans[column] = -1
    spans["host_begin_ns"] = (begins_ns[:, None] + [1, 110, 105, 300, 500, 800]).ravel()
    spans["host_end_ns"] = (begins_ns[:, None] + [100, 190, 195, 400, 700, 900]).ravel()
    spans["path"] = spans["phase"] = np.tile([0, 2, 1, 3, 4, 5], steps)
    spans["step"] = np.repeat(np.arange(steps), PHASES)
    spans["flags"] = 1
    spans[-1]["host_begin_ns"], spans[-1]["host_end_ns"], spans[-1]["step"] = 0, steps * 1000, -1
    array = np.zeros(steps, STEP_DTYPE)
    array["index"], array["begin_ns"], array["end_ns"] = range(steps), begins_ns, begins_ns + 950
    return Run(
        names="abcdef",
        path_parents=[-1, -1, 1, -1, -1, -1],
        path_names=range(PHASES),
        threads=[Thread(1, "MainThread")],
        spans=spans,
        steps=Steps(array),
        duration_ns=steps * 1000,
    )


def peak_bytes(format: str, steps: int) -> int:
    run = run_of(steps)
    tracemalloc.start()
    try:
        FORMATS[format].write([run], Nowhere(), advance=lambda spans: None)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("format", ["perfetto", "nvtxt"])
def test_memory_beside_the_run_does_not_grow_with_it(format: str) -> None:
    """From 20,000 to 40,000 spans, of which each has 96 bytes in the run itself."""
    few, many = 20_000 // PHASES, 40_000 // PHASES
    # Of the steps too, of which there are fewer, few are several windows.
    with mock.patch.object(ranges, "WINDOW_ROWS", 1024):
        growth = peak_bytes(format, many) - peak_bytes(format, few)
    assert growth / (PHASES * (many - few)) < 4  # less than a number for each
