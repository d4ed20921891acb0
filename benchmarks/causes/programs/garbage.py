# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector goes through a large heap again and again."""

import gc

import torch
from setting import FIXED, times
from torch import nn


class Node:
    def __init__(self):
        self.me = self


torch.manual_seed(0)
index = [{"path": str(number), "box": [number, number + 1]} for number in range(300_000)]
if FIXED:
    gc.freeze()
kept = []
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, targets = torch.randn(128, 256), torch.randint(0, 10, (128,))
for _ in range(times(800)):
    loss = nn.functional.cross_entropy(model(x), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append([Node() for _ in range(300)])
    if len(kept) > 300:
        kept.clear()
