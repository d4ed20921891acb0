# SPDX-License-Identifier: Apache-2.0
"""A hook is registered in each step and never removed: forward takes longer and longer."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
norms = {}


def watch():
    def hook(module, args, output):
        norms["hidden"] = output.detach().abs().mean()

    return model[0].register_forward_hook(hook)  # cause


for _ in range(times(400)):
    handle = watch()
    loss = model(torch.randn(16, 64)).square().mean()
    if FIXED:
        handle.remove()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
