# SPDX-License-Identifier: Apache-2.0
"""Anomaly detection was left on after debugging."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(not FIXED)  # cause
model = nn.Sequential(*(m for _ in range(30) for m in (nn.Linear(32, 32), nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, 32)
for _ in range(times(250)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
