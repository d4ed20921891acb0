# SPDX-License-Identifier: Apache-2.0
"""Many more threads than there are processors."""

import torch
from setting import FIXED, times
from torch import nn

if not FIXED:
    torch.set_num_threads(32)  # cause
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(256, 256), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(256, 256)
for _ in range(times(150)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
