# SPDX-License-Identifier: Apache-2.0
"""The files of simulated ranks are read and judged as what they were made of, and of many in
bounded memory."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pyinstrument_gpu import Job
from pyinstrument_gpu.job.analysis import of
from tests.helpers.python_server import run_fresh_python
from tests.helpers.run_writer import save
from tests.helpers.simulated_job import MS, Slow, run_of_rank, simulated_job

PHASES_NS = {
    "data": 10 * MS,
    "copy": 5 * MS,
    "zero_grad": 5 * MS,
    "forward": 60 * MS,
    "loss": 10 * MS,
    "backward": 100 * MS,
    "clip": 5 * MS,
    "optimizer": 5 * MS,
}
SLOW = Slow(3, dict.fromkeys(PHASES_NS, 1.03))
MOST_BYTES = 1 << 30


def save_job(folder: Path, ranks: int, steps: int) -> None:
    job = simulated_job(ranks, 1, SLOW, steps=steps, work_ns=PHASES_NS, noise=0.0167)
    for rank in job.ranks:
        save(run_of_rank(rank), folder / f"run.rank{rank.rank}.gpurun")


def test_files_of_a_simulated_job(tmp_path: Path) -> None:
    save_job(tmp_path, 4, 50)
    job = Job.load(tmp_path)
    made = simulated_job(4, 1, SLOW, steps=50, work_ns=PHASES_NS, noise=0.0167)
    for loaded, rank in zip(job.ranks, made.ranks, strict=True):
        assert loaded.paths == rank.paths and not loaded.notes
        for name in ("steps", "step_ns", "first_begin_ns", "last_end_ns", "self_ns", "device_ns"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(rank, name))
        assert loaded.collectives == rank.collectives
    assert of(job).phases == of(made).phases
    assert of(job).stragglers == of(made).stragglers


@pytest.mark.slow
def test_1024_ranks_of_1000_steps(tmp_path: Path) -> None:
    save_job(tmp_path, 1024, 1000)
    done = run_fresh_python("-m", __name__, tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def main(folder: str) -> None:
    job = Job.load(folder)
    analysis = of(job)
    straggler = analysis.stragglers.straggler
    assert straggler is not None and straggler.rank == SLOW.rank
    assert len(analysis.phases) == len(PHASES_NS) + 2
    # Of so many ranks the newest operations are kept, without those that come before the steps.
    assert [one.path for one in analysis.collectives] == ["backward"]
    # Not getrusage: that also knows the memory of the process that this one was started by.
    [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    peak = int(peak_kb) << 10
    print(f"{time.process_time():.1f} s of the CPU, {peak / 2**20:.0f} MiB")
    assert peak < MOST_BYTES


if __name__ == "__main__":
    main(sys.argv[1])
