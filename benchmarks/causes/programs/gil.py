# SPDX-License-Identifier: Apache-2.0
"""Another thread of the process computes in Python and holds the GIL."""

import threading

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
counts = {}


def count_words():
    while True:
        for number in range(1000):
            counts[number % 97] = counts.get(number % 97, 0) + 1  # cause


if not FIXED:
    threading.Thread(target=count_words, daemon=True).start()
for _ in range(times(120)):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
