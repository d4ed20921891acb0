# SPDX-License-Identifier: Apache-2.0
"""Autocast makes small layers slower on a CPU."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(30) for m in (nn.Linear(48, 48), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, 48)
for _ in range(times(200)):
    with torch.autocast("cpu", enabled=not FIXED):  # cause
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
