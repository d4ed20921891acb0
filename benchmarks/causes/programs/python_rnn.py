# SPDX-License-Identifier: Apache-2.0
"""A recurrent network that projects its input step by step in Python."""

import torch
from setting import FIXED, times
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(16, 32)
        self.whole = nn.RNN(16, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        if FIXED:
            return self.head(self.whole(x)[0][:, -1])
        state = torch.zeros(len(x), 32)
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)  # cause
        return self.head(state)


torch.manual_seed(0)
model = Recurrent()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, targets = torch.randn(64, 16, 100, 16), torch.randint(0, 10, (64, 16))
for step in range(times(250)):
    loss = nn.functional.cross_entropy(model(x[step % 64]), targets[step % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
