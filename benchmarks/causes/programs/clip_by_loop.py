# SPDX-License-Identifier: Apache-2.0
"""Gradients are clipped parameter by parameter."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def clip(limit):
    total = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5  # cause
    for parameter in model.parameters():
        parameter.grad.mul_(min(1.0, limit / (total + 1e-6)))  # cause


for _ in range(times(400)):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if FIXED:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    else:
        clip(1.0)
    optimizer.step()
