# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job that merges its metrics, each of which writes what it got as JSON: one that
finds its number where torchrun puts it, or so many forks:
`python -m tests.helpers.metric_rank FOLDER BATCHES [FORKS]`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing.spawn import start_processes

import pyinstrument_gpu as pig


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The batch of this number, of all ranks together."""
    generator = torch.Generator().manual_seed(number)
    logits = torch.randn(6, 5, generator=generator)
    target = torch.randint(-1, 6, (6,), generator=generator)
    loss = torch.tensor(number / 4 if number != 5 else float("nan"))
    return logits, target, loss


def accumulate(numbers: range) -> pig.MetricAccumulator:
    """An accumulator that has seen these batches."""
    metrics = pig.MetricAccumulator(topk=(1, 2), num_classes=5, confusion=True, ignore_index=-1)
    for number in numbers:
        logits, target, loss = batch(number)
        metrics.update(logits, target, loss)
        metrics.update_scalar("tokens", number + 0.5)
    return metrics


def accumulate_averages(numbers: range) -> pig.MetricAccumulator:
    """An accumulator with moving averages that has seen the logits of these batches."""
    metrics = pig.MetricAccumulator(ema=0.5)
    for number in numbers:
        logits, _, _ = batch(number)
        metrics.update_scalar("logits", logits, logits > 0)
        metrics.update_scalar("far from zero", logits * 50 + 1000)
    return metrics


def error_of(metrics: pig.MetricAccumulator, group: Any = None) -> str:
    try:
        metrics.compute(across_ranks=True, group=group)
    except ValueError as raised:
        return str(raised)
    return ""


def groups(rank: int, world_size: int) -> tuple[list[float], list[str]]:
    """The sum over pairs of ranks, as a device mesh and as a process group, and errors."""
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    metrics = pig.MetricAccumulator()
    metrics.update_scalar("rank", rank)
    sums = [
        metrics.compute(group=group)["rank_sum"]
        for group in (mesh["tp"], mesh["tp"].get_group(), pairs[rank // 2])
    ]
    alone = [dist.new_group([each]) for each in range(world_size)]
    odd = pig.MetricAccumulator(topk=1 + rank % 2)
    return sums, [
        error_of(metrics, mesh),
        error_of(metrics, alone[rank - 1]),
        error_of(odd, pairs[rank // 2]),
    ]


def shards(rank: int, world_size: int) -> dict[str, Any]:
    """The values of logits and targets that each rank has a part of."""
    mesh = init_device_mesh("cpu", (world_size,))
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(9, 5, generator=generator), torch.arange(9) % 5
    parts = [distribute_tensor(each, mesh, [Shard(0)]) for each in (logits, target)]
    metrics, whole = pig.MetricAccumulator(topk=(1, 2)), pig.MetricAccumulator(topk=(1, 2))
    metrics.update(
        parts[0], parts[1], weight=distribute_tensor(logits[:, 0].exp(), mesh, [Shard(0)])
    )
    whole.update(logits, target, weight=logits[:, 0].exp())
    merged, wanted = metrics.compute(across_ranks=True), whole.compute()
    keys = ("count", "accuracy@1", "accuracy@2")
    return {"merged": [merged[key] for key in keys], "wanted": [wanted[key] for key in keys]}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """With lists for arrays."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def run_rank(rank: int, world_size: int, folder: Path, batches: int) -> None:
    """Where torchrun has not said which rank this is, the arguments do."""
    # Without a name, the group has the backends of this build: NCCL, too, in one for CUDA.
    backend = None if torch.version.cuda is None else "gloo"
    if world_size:
        store = f"file://{folder / 'store'}"
        dist.init_process_group(backend, store, rank=rank, world_size=world_size)
    else:
        dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    metrics = accumulate(range(rank, batches, world_size))
    if rank == world_size - 1:
        metrics.update_scalar("of the last rank", 2.0)
    before = plain(metrics.compute())
    merged = [plain(metrics.compute(across_ranks=True)) for _ in range(2)]
    unchanged = json.dumps(plain(metrics.compute())) == json.dumps(before)
    other = min(rank, 1)
    errors = [
        error_of(pig.MetricAccumulator(topk=rank + 1)),
        error_of(pig.MetricAccumulator(num_classes=4 + other, confusion=True)),
        error_of(pig.MetricAccumulator((1,), 4, confusion=rank == 0, ignore_index=-other)),
    ]
    clashing = pig.MetricAccumulator()
    clashing.update_scalar("lr" if rank == 0 else "lr_max", 1.0)
    errors.append(error_of(clashing))
    named = pig.MetricAccumulator()
    for number in range(10):
        named.update_scalar(f"{number} of rank {rank}", number)
    of_many_names = named.compute(across_ranks=True)
    of_group, errors_of_group = groups(rank, world_size)
    pending = metrics.compute_async()
    metrics.update(*batch(0))
    later = plain(pending.result())
    sharded = shards(rank, world_size)
    empty = pig.MetricAccumulator()
    if rank == 0:
        empty.update(torch.eye(3), torch.arange(3))
    of_one_rank = empty.compute(across_ranks=True)
    averages = accumulate_averages(range(rank, batches, world_size))
    of_averages = averages.compute(across_ranks=True)
    # A rank that leaves closes its connections, which others may still be reading from: not before
    # all have what they came for.
    done = dist.FileStore(str(folder / "done"), world_size)  # type: ignore[attr-defined]
    done.set(str(rank), "")
    done.wait([str(each) for each in range(world_size)])
    dist.destroy_process_group()
    result = {
        "averages": of_averages,
        "own_ema": averages.compute()["logits_ema"],
        "merged": merged,
        "unchanged": unchanged,
        "errors": errors,
        "names": sum("_" not in name for name in of_many_names if " of rank " in name),
        "of_one_rank": of_one_rank["count"],
        "pending": [pending.done(), later],
        "of_group": of_group,
        "errors_of_group": errors_of_group,
        "sharded": sharded,
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    arguments = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) == 3:
        run_rank(0, 0, *arguments)
    else:
        forks = int(sys.argv[3])
        start_processes(run_rank, (forks, *arguments), forks, start_method="fork")
