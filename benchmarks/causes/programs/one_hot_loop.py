# SPDX-License-Identifier: Apache-2.0
"""Targets are made one-hot in a loop over the batch."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


def one_hot(labels):
    if FIXED:
        return nn.functional.one_hot(labels, 10).float()
    rows = torch.zeros(len(labels), 10)
    for row, label in enumerate(labels):
        rows[row, label] = 1.0  # cause
    return rows


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(720)):
    targets = one_hot(torch.randint(0, 10, (256,)))
    loss = (model(torch.randn(256, 64)) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
