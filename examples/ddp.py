# SPDX-License-Identifier: Apache-2.0
"""Trains on several processes of which one makes larger batches, and says who waits for whom.

torchrun --nproc-per-node 2 examples/ddp.py
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--uneven", type=int, default=4, help="how many times as large the last rank's batches are"
    )
    parser.add_argument("--output", type=Path, default=Path("ddp.gpurun"))
    parser.add_argument("--overwrite", action="store_true", help="replace existing output files")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same model on every rank
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    size = arguments.batch_size * (arguments.uneven if rank == ranks - 1 else 1)
    torch.manual_seed(rank)

    # Each rank writes a file of its own: ddp.rank0.gpurun and so on.
    with pig.record(arguments.output, overwrite=arguments.overwrite) as recording:
        for _ in range(arguments.steps):
            with gpu_step(samples=size):
                with gpu_phase("data"):
                    chosen = torch.randint(len(labels), (size,))
                    batch, targets = images[chosen], labels[chosen]
                with gpu_phase("forward"):
                    loss = functional.cross_entropy(model(batch), targets)
                # Here DDP sums the gradients of all ranks, and the quick ones wait for the slow.
                with gpu_phase("backward"):
                    loss.backward()
                with gpu_phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
    paths = [""] * ranks
    dist.all_gather_object(paths, str(recording.path))  # all files are complete once this is done
    if rank == 0:
        print(pig.Job.load(paths).report())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
