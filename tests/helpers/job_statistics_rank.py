# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that asks for the statistics of all. Writes what it got as JSON."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pyinstrument_gpu as pig

FOLDER = Path(sys.argv[1])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def steps(count: int, sleep_s: float = 0.0, name: str = "") -> None:
    for _ in range(count):
        with pig.gpu_step():
            with pig.gpu_phase("forward"):
                time.sleep(sleep_s)
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


def all_together() -> dict[str, Any]:
    is_last = RANK == RANKS - 1
    pair = dist.new_group([0, 1], backend="gloo")
    torch.set_default_device("meta")  # of no use for what is exchanged
    with pig.record(FOLDER / "job.gpurun") as recording:
        steps(4, 0.05 * (RANK == 0), "of the last" if is_last else "")
        result = {"rank": RANK, "first": plain(recording.job_statistics())}
        steps(2)
        result["second"] = plain(recording.job_statistics())
        if RANK < 2:
            result["of a group"] = recording.job_statistics(group=pair).ranks
        elif "not in the group" in error_of(recording, group=pair):
            result["of a group"] = "not in"
        if is_last:
            recording.stop()
            result["third"] = error_of(recording)
        else:
            result["third"] = recording.job_statistics().missing
    return result


def with_one_absent() -> dict[str, Any]:
    if RANK == 1:
        dist.new_group(backend="gloo")  # so far it takes part
        wait_for(FOLDER / "0.json")
        return {}
    with pig.record() as recording:
        error = error_of(recording, timeout_s=1)
        return {"error": error, "again": error_of(recording)}


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> None:
    dist.init_process_group("gloo")
    result = with_one_absent() if "absent" in sys.argv else all_together()
    whole = FOLDER / f"{RANK}.part"
    whole.write_text(json.dumps(result))
    whole.rename(FOLDER / f"{RANK}.json")
    if "absent" not in sys.argv:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
