# SPDX-License-Identifier: Apache-2.0
"""The whole history is written as JSON after each step."""

import json

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
history = []


def log(step, loss):
    history.append({"step": step, "loss": loss, "rates": [1e-2] * 40})
    kept = history[-1:] if FIXED else history[-300:]
    with open("history.json", "w") as file:
        json.dump(kept, file)  # cause


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for step in range(times(300)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log(step, loss.item())
