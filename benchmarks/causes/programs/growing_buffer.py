# SPDX-License-Identifier: Apache-2.0
"""A buffer of all outputs so far is concatenated anew in each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
outputs = torch.empty(0, 64)
chunks = []
for _ in range(times(700)):
    output = model(torch.randn(64, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if FIXED:
        chunks.append(output.detach())
    else:
        outputs = torch.cat([outputs, output.detach()])  # cause
