# SPDX-License-Identifier: Apache-2.0
"""The data set waits for a service that allows so many requests a second."""

import time

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)


class Remote(IterableDataset):
    def __iter__(self):
        for number in range(times(100)):
            if not FIXED:
                time.sleep(0.008)  # cause
            yield torch.full((32, 64), float(number % 7))


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for rows in DataLoader(Remote(), batch_size=None):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
