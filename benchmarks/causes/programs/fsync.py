# SPDX-License-Identifier: Apache-2.0
"""Each line of the log is written through to the disk."""

import os

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
log = open("losses.txt", "w")  # noqa: SIM115 - open for the whole run


def write(step, loss):
    log.write(f"{step} {loss}\n" + " " * 4096)
    if not FIXED:
        log.flush()
        os.fsync(log.fileno())  # cause


for step in range(times(400)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    write(step, loss.item())
