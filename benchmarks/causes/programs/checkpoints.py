# SPDX-License-Identifier: Apache-2.0
"""A checkpoint each five steps."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(10_000, 256), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(times(150)):
    ids = torch.randint(0, 10_000, (64, 8))
    loss = model(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (100 if FIXED else 5) == 4:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt"
        )  # cause
