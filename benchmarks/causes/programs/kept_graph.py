# SPDX-License-Identifier: Apache-2.0
"""The sum of losses keeps the graph of every step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
total = 0
for _ in range(times(250)):
    x = torch.randn(128, 128)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=not FIXED)  # cause
    optimizer.step()
    if FIXED:
        total += loss.item()
    else:
        total = total + loss  # cause
print(float(total))
