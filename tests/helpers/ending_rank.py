# SPDX-License-Identifier: Apache-2.0
"""A program of which `why` is asked: steps with an all-reduce each, where one rank comes to an end.

Its argument is the folder of the run files. In step 12 the last rank, or a program alone, waits in
"forward" forever. Ranks have gloo between them, except with "--alone-together": then they are only
called ranks, and rank 0 waits as if it had.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

STEPS, AT = 15, 12


def train(victim: bool, reduce: Any) -> None:
    for step in gpu_steps(range(STEPS)):
        with gpu_phase("forward"):
            if victim and step == AT:
                threading.Event().wait()
        with gpu_phase("backward"), gpu_phase("allreduce"):
            reduce(step)


def main() -> None:
    folder = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    is_victim = rank == world_size - 1
    with pig.record(folder / "run.gpurun", watchdog_s=1):
        if world_size == 1 or "--alone-together" in sys.argv:

            def wait(step: int) -> None:
                if not is_victim and step == AT:
                    threading.Event().wait()

            train(is_victim, wait)
            return
        import torch
        import torch.distributed as dist

        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        values = torch.ones(4)
        train(is_victim, lambda step: dist.all_reduce(values))


if __name__ == "__main__":
    main()
