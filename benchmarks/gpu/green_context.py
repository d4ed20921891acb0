# SPDX-License-Identifier: Apache-2.0
"""Phases on a stream of a green context, as libraries make it that divide a GPU: whether the driver
takes an event of the primary context there, and whether the phases have device times.

If it does not, these phases have none; those on other streams keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import _call_loop  # type: ignore[import-not-found]
import numpy as np
import torch

import pyinstrument_gpu as pig
from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.gpu import CudaGpu, Gpu
from pyinstrument_gpu import gpu_phase, gpu_step
from tests.helpers.cuda_kernels import CudaError

PHASES = 20


def figures(gpu: Gpu) -> Iterator[Figure]:
    """All that this part measures."""
    try:
        green = gpu.green_stream()
    except (AttributeError, CudaError) as error:
        print(f"there is no green context: {error}", flush=True)
        return
    with gpu.on_stream(green):
        address, arguments = gpu.record_call()
        answer = _call_loop.answer(address, arguments)
    yield Figure(
        "cuEventRecord on its stream: answer", answer, "", note="0: accepted; 400: not that context"
    )
    x, y = (torch.ones(1024, device=gpu.device) for _ in range(2))
    with pig.record(device_timing_budget=math.inf) as recording:
        for _ in range(PHASES):
            with gpu_step():
                with gpu.on_stream(green), gpu_phase("green"):
                    x.add_(1)
                with gpu_phase("primary"):
                    y.add_(1)
            gpu.synchronize()
            recording.flush(10)
    run = recording.run
    for name, goal in (("green", 0 if answer == 0 else None), ("primary", 0)):
        chosen = run.spans["path"] == run.paths.index(name)
        untimed = int(np.count_nonzero(run.span_device_ns[chosen] < 0))
        lost = {cause: count for cause, count in run.dropped.items() if count}
        yield Figure(
            f"phases on the {name} context's stream without a device time, of {PHASES}",
            untimed,
            "",
            goal=goal,
            note=f"lost: {lost}" if lost else "",
        )
    yield Figure("kernels lost", abs(x.sum().item() / 1024 - 1 - PHASES), "", goal=0)


def main() -> None:
    print_figures(figures(CudaGpu()))


if __name__ == "__main__":
    main()
