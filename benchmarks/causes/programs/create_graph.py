# SPDX-License-Identifier: Apache-2.0
"""The backward pass keeps its graph for a second derivative that nobody takes."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(64, 64), nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(900)):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward(create_graph=not FIXED)  # cause
    optimizer.step()
