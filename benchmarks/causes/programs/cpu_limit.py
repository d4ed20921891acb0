# SPDX-License-Identifier: Apache-2.0
"""The process may use one processor only."""

import os

import torch
from setting import FIXED, times
from torch import nn

if not FIXED:
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # cause
    torch.set_num_threads(threads)  # cause
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(512, 512), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(70)):
    loss = model(torch.randn(256, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
