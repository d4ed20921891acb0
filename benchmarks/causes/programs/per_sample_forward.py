# SPDX-License-Identifier: Apache-2.0
"""The model is called for each sample of a batch."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        if FIXED:
            return self.layers(x)
        return torch.stack([self.layers(row) for row in x])  # cause


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(240)):
    loss = model(torch.randn(64, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
