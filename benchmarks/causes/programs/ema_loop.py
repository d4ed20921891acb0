# SPDX-License-Identifier: Apache-2.0
"""An average of the weights, parameter by parameter in each step."""

import copy

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


@torch.no_grad()
def update_average():
    mine, new = average.state_dict(), model.state_dict()
    for name in mine:
        mine[name].copy_(0.999 * mine[name] + 0.001 * new[name])  # cause


@torch.no_grad()
def update_at_once():
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)


x = torch.randn(16, 32)
for _ in range(times(500)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    (update_at_once if FIXED else update_average)()
