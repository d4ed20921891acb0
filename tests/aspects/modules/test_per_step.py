# SPDX-License-Identifier: Apache-2.0
"""What a step spends in the modules of a model whose every nanosecond is known."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.aspects.modules.per_step import ModulePerStep, PassPerStep, modules_per_step
from tests.helpers.clock import fake_clock
from tests.helpers.timed_modules import Advance, Work

LAYERS = 3
STEPS = 2


def layer(advance: Advance) -> nn.Module:
    parts = {"attn": Work(advance, 10_000, 20_000), "mlp": Work(advance, 30_000, 60_000)}
    return nn.Sequential(OrderedDict(parts))


def per_step(share: float, **times_ns: int) -> ModulePerStep:
    """Times of one layer, of which each step has all."""
    passes = {
        ModulePass[kind.upper()]: PassPerStep(LAYERS, LAYERS * ns, device_ns=None)
        for kind, ns in times_ns.items()
    }
    return ModulePerStep(passes, share)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_taken_out_of_backward(use_reentrant: bool) -> None:
    """Without reentrance a layer is computed again once the backward pass is in its last module."""
    with fake_clock() as advance:
        layers = nn.ModuleList(layer(advance) for _ in range(LAYERS))
        with pig.watch_modules(layers, "all"), pig.record() as recording:
            for _ in range(STEPS):
                with pig.gpu_step():
                    x = torch.ones(4, requires_grad=True)
                    for one in layers:
                        x = checkpoint(one, x, use_reentrant=use_reentrant)
                    x.sum().backward()
            layers[0](x)  # in no step

    run = recording.run
    assert run.modules["*"].calls == LAYERS * STEPS + 1
    assert modules_per_step(run) == {
        "*": per_step(1.0, forward=40_000, backward=80_000, recompute=40_000),
        "*.attn": per_step(0.25, forward=10_000, backward=20_000, recompute=10_000),
        "*.mlp": per_step(0.75, forward=30_000, backward=60_000, recompute=30_000),
    }
