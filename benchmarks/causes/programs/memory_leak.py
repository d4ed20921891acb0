# SPDX-License-Identifier: Apache-2.0
"""All outputs are kept, so memory grows until there is none."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
outputs = []
for _ in range(times(300)):
    output = model(torch.randn(512, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    outputs.append(float(output.mean()) if FIXED else output.detach())  # cause
