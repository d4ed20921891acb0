# SPDX-License-Identifier: Apache-2.0
"""A progress bar that is drawn anew in each step, with its table of metrics."""

import sys

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def draw(step, steps, loss):
    rows = [f"{name:12}{loss * number:10.4f}" for number, name in enumerate(model.state_dict())]
    bar = "".join("#" if place * steps < step * 400 else "." for place in range(400))  # cause
    sys.stdout.write("\r" + bar + " ".join(rows))
    sys.stdout.flush()


steps = times(2000)
for step in range(steps):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 200 == 0:
        draw(step, steps, loss.item())
