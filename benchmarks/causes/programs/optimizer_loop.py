# SPDX-License-Identifier: Apache-2.0
"""An optimizer that goes through many small parameters one by one."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
layers = [layer for _ in range(100) for layer in (nn.Linear(32, 32), nn.LayerNorm(32))]
model = nn.Sequential(*layers)
kind = {"fused": True} if FIXED else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)  # cause
x = torch.randn(16, 32)
for _ in range(times(150)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # cause
