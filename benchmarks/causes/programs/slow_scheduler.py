# SPDX-License-Identifier: Apache-2.0
"""The schedule of the learning rate sums over all earlier steps."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


def factor(step):
    if FIXED:
        return 1 / (1 + step)
    return 1 / (1 + sum(1 for _ in range(20_000 + step)))  # cause


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(times(1200)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
