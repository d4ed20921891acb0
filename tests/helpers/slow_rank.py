# SPDX-License-Identifier: Apache-2.0
"""A program for torchrun: ranks train one network on the CPU with gloo, and one may be slower.

python slow_rank.py CASE STEPS WIDTH
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 32
SLEEP_S = 0.2
LATE_S = 3.0
SLOW_RANK = 1


class Noise(Dataset[torch.Tensor]):
    """Random samples; of the first of a batch, `pause` is asked how long to sleep."""

    def __init__(self, width: int, length: int) -> None:
        self._samples = torch.randn(length, width)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> torch.Tensor:
        if number % BATCH == 0:
            time.sleep(pause("data", number // BATCH))
        return self._samples[number]


def pause(phase: str, step: int, took_s: float = 0.0) -> float:
    """How long this rank sleeps in a phase that took so long."""
    rank = dist.get_rank()
    if case == "in-turn":
        return 0.05 if phase == "data" and step % dist.get_world_size() == rank else 0.0
    if rank != SLOW_RANK:
        return 0.0
    if phase == "data" and case in ("sleep", "sleep-some"):
        return SLEEP_S if case == "sleep" or step % 5 == 0 else 0.0
    if phase == "data" and case == "loader":
        return 0.02
    is_slower = case == "slower" or (case == "backward" and phase == "backward")
    return 0.3 * took_s if is_slower else 0.0


def main(steps: int, width: int) -> None:
    torch.set_num_threads(1)
    if case == "late" and int(os.environ["RANK"]) == SLOW_RANK:
        time.sleep(LATE_S)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, samples in enumerate(DataLoader(Noise(width, steps * BATCH), batch_size=BATCH)):
        optimizer.zero_grad()
        began_s = time.perf_counter()
        output = model(samples)
        forward_s = time.perf_counter() - began_s
        loss = output.square().mean()

        def rest(gradient: torch.Tensor, step: int = step, took_s: float = forward_s) -> None:
            time.sleep(pause("backward", step, 2 * took_s))

        output.register_hook(rest)
        loss.backward()
        optimizer.step()
        if case == "slower":
            time.sleep(pause("rest", step, forward_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    case = sys.argv[1]
    main(int(sys.argv[2]), int(sys.argv[3]))
