# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that merges its metrics; started by torchrun. Writes what it got as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

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


def error_of(metrics: pig.MetricAccumulator) -> str:
    try:
        metrics.compute(across_ranks=True)
    except ValueError as raised:
        return str(raised)
    return ""


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """With lists for arrays."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def main() -> None:
    folder, batches = Path(sys.argv[1]), int(sys.argv[2])
    # Without a name, the group has the backends of this build: NCCL, too, in one for CUDA.
    dist.init_process_group(None if torch.version.cuda is None else "gloo")
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
    empty = pig.MetricAccumulator()
    if rank == 0:
        empty.update(torch.eye(3), torch.arange(3))
    of_one_rank = empty.compute(across_ranks=True)
    # A rank that leaves closes its connections, which others may still be reading from: not before
    # all have what they came for.
    done = dist.FileStore(str(folder / "done"), world_size)  # type: ignore[attr-defined]
    done.set(str(rank), "")
    done.wait([str(each) for each in range(world_size)])
    dist.destroy_process_group()
    result = {
        "merged": merged,
        "unchanged": unchanged,
        "errors": errors,
        "names": sum("_" not in name for name in of_many_names if " of rank " in name),
        "of_one_rank": of_one_rank["count"],
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
