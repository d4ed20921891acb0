# SPDX-License-Identifier: Apache-2.0
"""All gradients are checked for NaN in each step, one by one."""

import torch
from setting import FIXED, times
from torch import nn


def check(model):
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if torch.isnan(gradient).any() or torch.isinf(gradient).any():  # cause
            raise ValueError(f"{name} is not finite")


torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, 32)
for step in range(times(500)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if not FIXED or step % 100 == 0:
        check(model)
    optimizer.step()
