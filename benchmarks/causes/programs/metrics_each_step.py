# SPDX-License-Identifier: Apache-2.0
"""A confusion matrix and its scores are computed in each step, in Python."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
matrix = [[0] * 10 for _ in range(10)]


def update_scores(outputs, targets):
    for guess, target in zip(outputs.argmax(1), targets, strict=True):
        matrix[int(guess)][int(target)] += 1  # cause


for step in range(times(500)):
    x, targets = torch.randn(256, 64), torch.randint(0, 10, (256,))
    outputs = model(x)
    loss = nn.functional.cross_entropy(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not FIXED or step % 100 == 0:
        update_scores(outputs, targets)
