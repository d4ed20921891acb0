# SPDX-License-Identifier: Apache-2.0
"""A large buffer is made anew in each step, from fresh memory."""

import numpy as np
import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
kept = np.empty(40_000_000, np.uint8)


def scratch():
    buffer = kept if FIXED else np.empty(40_000_000, np.uint8)
    buffer[::4096] = 1  # cause
    return buffer


for _ in range(times(80)):
    scratch()
    loss = model(torch.randn(64, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
