# SPDX-License-Identifier: Apache-2.0
"""A program for torchrun: ranks train on the CPU with gloo, and some of them sleep longer.

Work is mostly sleeping, so that many ranks fit on few cores. `python slow_job.py --help`
"""

import argparse
import os
import random
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WIDTH = 64
BATCH = 8


class Pause(torch.autograd.Function):
    """Sleeps in the forward pass and in the backward pass."""

    @staticmethod
    def forward(ctx, x, block):  # type: ignore[no-untyped-def]
        ctx.block = block
        pause("forward", block)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        pause("backward", ctx.block)
        return gradient, None


class Block(torch.nn.Module):
    """Two layers; the second of the network is the one that may be slow."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Pause.apply(self.up(x), self.number)  # type: ignore[no-untyped-call]
        z: torch.Tensor = self.down(y.relu())
        return z


def is_slow(phase: str, block: int = 1) -> bool:
    if phase != options.phase or RANK not in options.slow or Samples.step % options.every:
        return False
    # In a pipeline each rank has one block; elsewhere the second one is slow.
    return options.parallel.startswith("pp") or block == 1


def pause(phase: str, block: int) -> None:
    usual_ms = options.work * noise.lognormvariate(0, options.noise)
    time.sleep((usual_ms + (options.ms if is_slow(phase, block) else 0)) / 1000)


class Samples(IterableDataset[torch.Tensor]):
    step = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(options.steps):
            Samples.step = step
            if is_slow("data"):
                time.sleep(options.ms / 1000)
            yield torch.randn(BATCH, WIDTH)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if RANK in options.slow and options.phase == "start":
        time.sleep(options.ms / 1000)
    dist.init_process_group("gloo")
    loader = DataLoader(Samples(), batch_size=None)
    if options.parallel.startswith("pp"):
        pipeline(loader)
    else:
        train(loader)
    dist.destroy_process_group()


def train(loader: DataLoader[torch.Tensor]) -> None:
    model = torch.nn.Sequential(*map(Block, range(options.blocks)))
    wrapped: torch.nn.Module = model
    if options.parallel == "ddp":
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    else:
        shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for samples in loader:
        optimizer.zero_grad()
        loss = wrapped(samples).square().mean()
        loss.backward()
        optimizer.step()


def shard(model: torch.nn.Sequential) -> None:
    """Over all ranks as "fsdp" or "tp", or as a "mesh" of both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    tp = {"tp": WORLD, "mesh": 2}.get(options.parallel, 1)
    mesh = init_device_mesh("cpu", (WORLD // tp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
        for block in model:
            parallel.parallelize_module(block, mesh["tp"], plan)
    if tp < WORLD:
        for block in (*model, model):
            fully_shard(block, mesh=mesh["dp"])


def pipeline(loader: DataLoader[torch.Tensor]) -> None:
    """A stage on each rank; with "pp-dp" two ranks share each stage and reduce their gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    dp = 2 if options.parallel == "pp-dp" else 1
    mesh = init_device_mesh("cpu", (WORLD // dp, dp), mesh_dim_names=("pp", "dp"))
    stages, group = WORLD // dp, mesh.get_group("pp")
    number = dist.get_rank(group)
    model: torch.nn.Module = Block(number)
    if dp > 1:
        model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    stage = PipelineStage(model, number, stages, torch.device("cpu"), group=group)
    kind = ScheduleGPipe if options.parallel == "pp-gpipe" else Schedule1F1B
    schedule = kind(stage, BATCH, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for samples in loader:
        optimizer.zero_grad()
        if number == 0:
            schedule.step(samples)
        elif number == stages - 1:
            schedule.step(target=torch.zeros(BATCH, WIDTH))
        else:
            schedule.step()
        optimizer.step()


if __name__ == "__main__":
    RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("ddp", "fsdp", "tp", "mesh", "pp-gpipe", "pp-1f1b", "pp-dp")
    parser.add_argument("--parallel", choices=kinds, default="ddp")
    parser.add_argument("--slow", type=int, nargs="*", default=[], help="the ranks that sleep")
    parser.add_argument("--phase", default="forward", help="data, forward, backward or start")
    parser.add_argument("--ms", type=float, default=100.0, help="how long they sleep")
    parser.add_argument("--every", type=int, default=1, help="in every so-manieth step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--work", type=float, default=5.0, help="ms that each block sleeps")
    parser.add_argument("--noise", type=float, default=0.03, help="how much that varies")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    noise = random.Random(1000 * options.seed + RANK)
    main()
