# SPDX-License-Identifier: Apache-2.0
"""Hooks on all modules keep statistics of their outputs in each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(30) for m in (nn.Linear(32, 32), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
statistics = {}


def keep_statistics(module, args, output):
    values = output.detach()
    statistics[id(module)] = (
        values.mean().item(),
        values.std().item(),
        values.quantile(0.9).item(),
    )  # cause


for module in model if not FIXED else []:
    module.register_forward_hook(keep_statistics)
for _ in range(times(120)):
    loss = model(torch.randn(64, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
