# SPDX-License-Identifier: Apache-2.0
"""Samples are looked for in a list that grows."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
seen = set() if FIXED else []


def is_new(key):
    if key in seen:  # cause
        return False
    seen.add(key) if FIXED else seen.append(key)
    return True


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for step in range(times(300)):
    x = torch.randn(16, 64)
    fresh = sum(is_new(step * 16 + row) for row in range(16))
    loss = model(x).square().mean() * fresh
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
