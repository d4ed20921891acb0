# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job that ask for the statistics of all. Each writes what it got as JSON."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pyinstrument_gpu as pig
from tests.helpers.clock import fake_clock


def steps(count: int, advance_ns: Callable[[int], None], forward_ns: int, name: str = "") -> None:
    for _ in range(count):
        with pig.gpu_step():
            with pig.gpu_phase("forward"):
                advance_ns(forward_ns)
            if name:
                with pig.gpu_phase(name):
                    pass


def plain(found: pig.JobStatistics) -> dict[str, Any]:
    return {
        "ranks": found.ranks,
        "missing": found.missing,
        "steps": found.steps.tolist(),
        "counts": {path: phase.count.tolist() for path, phase in found.phases.items()},
        "slowest": {path: phase.slowest_rank for path, phase in found.phases.items()},
        "distance_ns": {
            path: phase.distance_ns
            for path, phase in found.phases.items()
            if phase.slowest_rank is not None
        },
    }


def error_of(recording: pig.Recording, **options: Any) -> str:
    try:
        recording.job_statistics(**options)
    except (pig.RecordingError, ValueError) as error:
        return str(error)
    return ""


def all_together(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    is_last = rank == ranks - 1
    pair = dist.new_group([0, 1], backend="gloo")
    torch.set_default_device("meta")  # of no use for what is exchanged
    with fake_clock() as advance_ns, pig.record(folder / "job.gpurun") as recording:
        steps(4, advance_ns, 50_000_000 if rank == 0 else 1_000, "of the last" if is_last else "")
        result: dict[str, Any] = {"first": plain(recording.job_statistics())}
        steps(2, advance_ns, 1_000)
        result["second"] = plain(recording.job_statistics())
        if rank < 2:
            result["of a group"] = recording.job_statistics(group=pair).ranks
        elif "not in the group" in error_of(recording, group=pair):
            result["of a group"] = "not in"
        if is_last:
            recording.stop()
            result["third"] = error_of(recording)
        else:
            result["third"] = recording.job_statistics().missing
    return result


def with_one_absent(rank: int, folder: Path) -> dict[str, Any]:
    if rank == 1:
        dist.new_group(backend="gloo")  # so far it takes part
        while not (folder / "0.json").exists():
            time.sleep(0.05)
        return {}
    with fake_clock(), pig.record() as recording:
        error = error_of(recording, timeout_s=1)
        return {"error": error, "again": error_of(recording)}


def main() -> None:
    """This process is rank 0, and those it forks are the others."""
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    rank = 0
    children: list[int] = []
    for other in range(1, ranks):
        child = os.fork()
        if child == 0:
            rank, children = other, []
            break
        children.append(child)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    store = torch._C._distributed_c10d.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    is_absent = "absent" in sys.argv
    result = with_one_absent(rank, folder) if is_absent else all_together(rank, ranks, folder)
    whole = folder / f"{rank}.part"
    whole.write_text(json.dumps(result))
    whole.rename(folder / f"{rank}.json")
    if not is_absent:
        dist.destroy_process_group()
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
