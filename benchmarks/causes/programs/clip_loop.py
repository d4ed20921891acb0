# SPDX-License-Identifier: Apache-2.0
"""Gradients are clipped in a loop over many small parameters."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(80) for layer in (nn.Linear(16, 16), nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def clip():
    for parameter in model.parameters():
        norm = parameter.grad.norm(2)
        if norm > 1.0:
            parameter.grad.mul_(1.0 / norm)
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)  # cause
        parameter.grad.mul_(scale)


for _ in range(times(120)):
    loss = model(torch.randn(16, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if FIXED:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        clip()
    optimizer.step()
