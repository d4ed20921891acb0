# SPDX-License-Identifier: Apache-2.0
"""Autocast on a CPU where casts cost more than they save."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(64, 64), nn.LayerNorm(64))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(150)):
    x = torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled=not FIXED):  # cause
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
