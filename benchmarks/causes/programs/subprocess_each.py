# SPDX-License-Identifier: Apache-2.0
"""A command is started at each tenth step to read the use of the machine."""

import subprocess

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


def used_memory():
    return subprocess.run(["cat", "/proc/meminfo"], capture_output=True, text=True).stdout  # cause


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for step in range(times(1200)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (500 if FIXED else 5) == 4:
        used_memory()
