# SPDX-License-Identifier: Apache-2.0
"""Whether two streams still overlap when the phases on them are timed.

How long two kernels on two streams take together, in kernels: 1 when they overlap, 2 when one waits
for the other. Run it also with CUDA_DEVICE_MAX_CONNECTIONS=1, where all streams share one queue and
a timing event can keep them apart.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from time import perf_counter_ns

import numpy as np

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from benchmarks.interleave import interleaved
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.recording.device_timing import DeviceTimingMode

SPIN_NS = 5_000_000
MAX_KERNELS = 1.1


def together_ns(gpu: Gpu, mode: DeviceTimingMode | None) -> float:
    """Until both kernels are done. `mode` as device_timing of a recording; None: no recording."""
    recording = (
        nullcontext()
        if mode is None
        else pig.record(device_timing=mode, device_timing_budget=math.inf)
    )
    with warnings.catch_warnings():
        # That device timing is off on side streams with one connection is what is measured.
        warnings.simplefilter("ignore", RuntimeWarning)
        with recording, gpu_step():
            gpu.synchronize()
            begin_ns = perf_counter_ns()
            for name in ("first", "second"):
                with gpu.side_stream(), gpu_phase(name):
                    gpu.spin(SPIN_NS)
            gpu.synchronize()
            return perf_counter_ns() - begin_ns


def figures(gpu: Gpu, *, rounds: int = 30, seconds: float = 20) -> Iterator[Figure]:
    """All that this part measures."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset")
    results = interleaved(
        {
            "no recording": lambda: together_ns(gpu, None),
            "recording": lambda: together_ns(gpu, "auto"),
            'device_timing="force"': lambda: together_ns(gpu, "force"),
        },
        rounds=rounds,
        seconds=seconds,
    )
    for name, times_ns in results.items():
        yield Figure(
            f"CUDA_DEVICE_MAX_CONNECTIONS={connections}: {name}",
            float(np.median(times_ns)) / SPIN_NS,
            "kernels",
            goal=MAX_KERNELS if name == "recording" else None,
        )


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
