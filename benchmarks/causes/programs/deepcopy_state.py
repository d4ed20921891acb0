# SPDX-License-Identifier: Apache-2.0
"""The best weights are copied at each step that is better than the last one."""

import copy

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, 256)
best = None
for step in range(times(1000)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 50 == 0:
        best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))  # cause
