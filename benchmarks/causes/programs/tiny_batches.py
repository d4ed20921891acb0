# SPDX-License-Identifier: Apache-2.0
"""Batches of two: each step costs about as much as one of sixty-four."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
count = times(800) * 2
data = TensorDataset(torch.randn(count, 64), torch.randint(0, 10, (count,)))
loader = DataLoader(data, batch_size=64 if FIXED else 2)  # cause
model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for rows, targets in loader:
    loss = nn.functional.cross_entropy(model(rows), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
