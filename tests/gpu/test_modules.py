# SPDX-License-Identifier: Apache-2.0
"""Modules on a GPU: known kernels, and a backward pass on autograd's own thread."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from tests.gpu.conftest import Timed
from tests.gpu.test_times import FLUSH_S
from tests.helpers.cuda_kernels import CudaKernels
from tests.helpers.spans import dropped_of
from tests.helpers.timed_modules import Work

MS = 1_000_000
# Each module launches some small kernels of its own besides the one that is known.
OTHER_KERNELS_NS = 150_000
STEPS = 5


class Block(nn.Module):
    """A residual block of two kernels, 2 and 3 ms forward, twice that backward."""

    def __init__(self, kernels: CudaKernels) -> None:
        super().__init__()
        self.attn = Work(functools.partial(kernels.spin), 2 * MS, 4 * MS)
        self.mlp = Work(functools.partial(kernels.spin), 3 * MS, 6 * MS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)
        y: torch.Tensor = x + self.mlp(x)
        return y


def trained(model: nn.Module, timed: Timed, x: torch.Tensor) -> Run:
    for _ in range(2):
        model(x).sum().backward()
    torch.cuda.synchronize()
    with pig.watch_modules(model, "all", every=1), timed() as recording:
        for _ in range(STEPS):
            with pig.gpu_step():
                with pig.gpu_phase("forward"):
                    loss = model(x).sum()
                with pig.gpu_phase("backward"):
                    loss.backward()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    return recording.run


def test_modules_have_the_times_of_their_kernels(kernels: CudaKernels, timed: Timed) -> None:
    model = nn.Sequential(Block(kernels), Block(kernels)).cuda()
    x = torch.ones(1024, device="cuda", requires_grad=True)
    run = trained(model, timed, x)
    assert dropped_of(run) == {}
    for name, forward_ns in (("*", 5 * MS), ("*.attn", 2 * MS), ("*.mlp", 3 * MS)):
        times = run.modules[name]
        assert times.calls == 2 * STEPS
        assert times.device_forward is not None
        assert times.device_backward is not None
        assert times.backward is not None
        assert times.device_forward.count == times.device_backward.count == 2 * STEPS
        assert times.backward.count == 2 * STEPS
        assert times.device_forward.mean_ns == pytest.approx(forward_ns, abs=OTHER_KERNELS_NS)
        assert times.device_backward.mean_ns == pytest.approx(2 * forward_ns, abs=OTHER_KERNELS_NS)


def test_a_backward_pass_hangs_under_the_phase_that_called_it(
    kernels: CudaKernels, timed: Timed
) -> None:
    model = nn.Sequential(Block(kernels), Block(kernels)).cuda()
    x = torch.ones(1024, device="cuda", requires_grad=True)
    run = trained(model, timed, x)
    backward = run.module_spans[run.module_spans["kind"] == 1]
    assert {run.paths[path] for path in backward["path"]} == {"backward"}
    assert set(backward["step"].tolist()) == set(range(STEPS))
    # PyTorch runs it on a thread of its own.
    main = {run.threads[thread].name for thread in run.spans["thread"]}
    assert len(main) == 1
    assert {run.threads[thread].name for thread in backward["thread"]} - main

    # The marks divide the pass.
    outermost = backward[backward["depth"] == 0]
    modules_ns = int(durations_ns_of(outermost, "host_").sum())
    phase = run.phases["backward"]
    assert phase.host is not None
    assert phase.device is not None
    assert modules_ns <= phase.host.total_ns
    device_ns = int(durations_ns_of(outermost, "device_").sum())
    assert device_ns == pytest.approx(phase.device.total_ns, abs=STEPS * OTHER_KERNELS_NS)


def test_modules_of_a_real_model_within_the_budget() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda")
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(16, 128, 256, device="cuda")
    with pig.watch_modules(model, every=1), pig.record() as recording:
        for _ in range(300):
            with pig.gpu_step():
                with pig.gpu_phase("forward"):
                    loss = model(x).square().mean()
                with pig.gpu_phase("backward"):
                    loss.backward()
                with pig.gpu_phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
        torch.cuda.synchronize()
        assert recording.flush(FLUSH_S)
    run = recording.run
    times = run.modules["layers.*"]
    assert times.calls == 1200
    assert times.backward is not None
    assert times.backward.count == 1200
    assert times.device_forward is not None
    assert times.device_backward is not None
    assert 0 < times.device_backward.count <= 1200
    print(run.report(verbose=True, width=120))
