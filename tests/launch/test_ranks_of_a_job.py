# SPDX-License-Identifier: Apache-2.0
"""Real ranks with gloo: the one that sleeps is named, with its phase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyinstrument_gpu.job.analysis import of

from pyinstrument_gpu import Job
from pyinstrument_gpu.job.findings import Pattern
from tests.helpers import slow_rank
from tests.helpers.launched import ROOT


@pytest.mark.slow
def test_a_rank_that_sleeps_in_its_loader_is_named(tmp_path: Path) -> None:
    steps, width = 40, 64
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    ours = ("-m", "pyinstrument_gpu", "run", "--no-report", str(Path(slow_rank.__file__)))
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *torchrun, *ours, "sleep", str(steps), str(width)],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    job = Job.load(tmp_path)
    assert (job.world_size, [rank.rank for rank in job.ranks], job.missing) == (2, [0, 1], {})
    stragglers = of(job).stragglers
    assert stragglers.straggler is not None, stragglers
    assert stragglers.is_by_arrivals and stragglers.pattern == Pattern.ALWAYS
    assert stragglers.straggler.rank == slow_rank.SLOW_RANK
    assert stragglers.straggler.path == "data"
    rows = {(use.operation, use.path): use for use in of(job).collectives}
    # Its bytes are those of all gradients, in each of the common steps at least.
    parameters = 6 * (width + 1) * width
    assert rows["all_reduce", "backward"].bytes >= (steps - 1) * 4 * parameters
    assert rows["all_reduce", "backward"].last_rank == slow_rank.SLOW_RANK
