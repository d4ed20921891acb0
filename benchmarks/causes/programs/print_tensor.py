# SPDX-License-Identifier: Apache-2.0
"""A tensor is printed in each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(times(500)):
    output = model(torch.randn(16, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 100 == 0:
        print("output", output)  # cause
