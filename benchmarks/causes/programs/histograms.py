# SPDX-License-Identifier: Apache-2.0
"""A histogram of each parameter is made in each step."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = {}


def log_histograms():
    for name, parameter in model.named_parameters():
        history[name] = torch.histc(parameter.detach(), bins=64).tolist()  # cause


x = torch.randn(32, 64)
for step in range(times(600)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 100 == 0:
        log_histograms()
