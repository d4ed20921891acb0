# SPDX-License-Identifier: Apache-2.0
"""A loss over pairs is summed in a loop."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


def pair_loss(x):
    if FIXED:
        return (torch.pdist(x) ** 2).sum()
    total = torch.zeros(())
    for first in range(len(x)):
        for second in range(first + 1, len(x)):
            total = total + (x[first] - x[second]).square().sum()  # cause
    return total


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(240)):
    loss = pair_loss(model(torch.randn(16, 64)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
