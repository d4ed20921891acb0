# SPDX-License-Identifier: Apache-2.0
"""What autocast costs on a CPU: the same layers with it and without it, by their size and that of
the batch. The least of some times of the thread, in one thread, so that it holds beside other work.

    python -m benchmarks.autocast_on_cpu
"""

from __future__ import annotations

import time

import torch
from torch import nn

from benchmarks.machine import describe_machine

LAYERS = 6
TIMES = 12


def least_ms(width: int, rows: int, has_autocast: bool) -> float:
    torch.manual_seed(0)
    layers = (one for _ in range(LAYERS) for one in (nn.Linear(width, width), nn.ReLU()))
    model, batch = nn.Sequential(*layers), torch.randn(rows, width)
    taken_s = []
    for _ in range(TIMES):
        began_s = time.thread_time()
        with torch.autocast("cpu", enabled=has_autocast):
            loss = model(batch).square().mean()
        loss.backward()
        taken_s.append(time.thread_time() - began_s)
    return 1e3 * min(taken_s)


def main() -> None:
    torch.set_num_threads(1)
    print(describe_machine())
    print("| width of a layer | rows of a batch | without, ms | with autocast, ms | ratio |")
    print("|---:|---:|---:|---:|---:|")
    for width in (48, 128, 256, 512, 1024, 2048):
        for rows in (16, 128):
            without, with_it = (least_ms(width, rows, one) for one in (False, True))
            ratio = f"{with_it / without:.2f}"
            print(f"| {width} | {rows} | {without:.2f} | {with_it:.2f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
