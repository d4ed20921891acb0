# SPDX-License-Identifier: Apache-2.0
"""The norm of each gradient is read, and noted, at each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(24, 24), nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
norms = {}


def note_norms():
    for name, parameter in model.named_parameters():
        norms[name] = parameter.grad.norm().item(), parameter.norm().item()  # cause


for step in range(times(300)):
    loss = model(torch.randn(16, 24)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if not FIXED or step % 100 == 0:
        note_norms()
    optimizer.step()
