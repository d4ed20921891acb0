# SPDX-License-Identifier: Apache-2.0
"""All outputs become Python lists at each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
kept = []


def keep(outputs):
    kept[:] = outputs.tolist() if not FIXED else outputs[:1].tolist()  # cause


model = nn.Linear(64, 2000)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(120)):
    outputs = model(torch.randn(256, 64))
    loss = outputs.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keep(outputs)
