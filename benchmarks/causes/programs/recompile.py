# SPDX-License-Identifier: Apache-2.0
"""torch.compile compiles anew for each value of a Python number."""

import torch
from setting import FIXED, times
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.temperature = 1

    def forward(self, x):
        return self.layers(x) / self.temperature  # cause


torch.manual_seed(0)
model = Net()
compiled = torch.compile(model, dynamic=False, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, targets = torch.randn(256, 64), torch.randint(0, 10, (256,))
for step in range(times(400)):
    model.temperature = 1 if FIXED else 1 + step // 25
    loss = nn.functional.cross_entropy(compiled(x), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
