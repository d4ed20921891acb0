# SPDX-License-Identifier: Apache-2.0
"""A smoothed loss that goes through all losses so far: each step takes longer."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
losses = []
smooth = 0.0


def smoothed(beta=0.99):
    mean = 0.0
    for loss in losses:
        mean = beta * mean + (1 - beta) * loss  # cause
    return mean


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(times(5000)):
    x, targets = torch.randn(16, 64), torch.randint(0, 10, (16,))
    loss = nn.functional.cross_entropy(model(x), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    smooth = 0.99 * smooth + 0.01 * losses[-1] if FIXED else smoothed()
