# SPDX-License-Identifier: Apache-2.0
"""A whole evaluation after each ten steps."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x, targets = torch.randn(6400, 128), torch.randint(0, 10, (6400,))


def evaluate():
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, 6400, 64):
            outputs = model(x[start : start + 64])  # cause
            right += int((outputs.argmax(1) == targets[start : start + 64]).sum())  # cause
    model.train()
    return right / 6400


for step in range(times(600)):
    rows = slice(step * 64 % 6400, step * 64 % 6400 + 64)
    loss = nn.functional.cross_entropy(model(x[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % (300 if FIXED else 10) == 9:
        evaluate()
