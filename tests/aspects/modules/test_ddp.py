# SPDX-License-Identifier: Apache-2.0
"""Modules of a model that two ranks train together, each with times of its own."""

from pathlib import Path

from tests.helpers.script import run_script

SOURCE = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pyinstrument_gpu as pig
from tests.helpers.clock import fake_clock
from tests.helpers.timed_modules import Work

STEPS, MICRO_BATCHES = 2, 2

child = os.fork()
rank = 0 if child else 1
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
torch.manual_seed(0)

with fake_clock() as advance:
    own_ns = 1_000 * (1 + rank)
    parts = [Work(advance, own_ns, 2_000), Work(advance, 10_000, 20_000 * (1 + rank))]
    model = nn.Sequential(*parts)
    x = torch.ones(4)
    with pig.watch_modules(model, "all", every=1), pig.record() as recording:
        wrapped = DistributedDataParallel(model)
        for _ in range(STEPS):
            with pig.gpu_step():
                with wrapped.no_sync():
                    wrapped(x).sum().backward()
                loss = wrapped(x).sum()
                with pig.gpu_phase("backward"):
                    loss.backward()
    run = recording.run

calls = STEPS * MICRO_BATCHES
first, second = run.modules["0"], run.modules["1"]
assert (first.calls, second.calls) == (calls, calls)
assert first.forward.total_ns == calls * own_ns
assert second.forward.total_ns == calls * 10_000
assert first.backward.total_ns == calls * 2_000
assert second.backward.total_ns == calls * 20_000 * (1 + rank)
backward = run.phases["backward"].host
assert backward.total_ns == STEPS * (2_000 + 20_000 * (1 + rank))
assert set(run.module_spans["step"].tolist()) == {0, 1}

dist.destroy_process_group()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""


def test_each_rank_has_the_times_of_its_own_modules(tmp_path: Path) -> None:
    run_script(SOURCE, tmp_path / "store", environment={"GLOO_SOCKET_IFNAME": "lo"})
