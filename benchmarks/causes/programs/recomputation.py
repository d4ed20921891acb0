# SPDX-License-Identifier: Apache-2.0
"""All layers are checkpointed, though memory is plenty: forward is computed twice."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layers = nn.ModuleList(
    nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(6)
)
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)


def encode(x):
    for layer in layers:
        x = layer(x) if FIXED else checkpoint(layer, x, use_reentrant=False)  # cause
    return x


for _ in range(times(60)):
    loss = encode(torch.randn(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
