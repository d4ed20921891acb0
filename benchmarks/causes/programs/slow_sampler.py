# SPDX-License-Identifier: Apache-2.0
"""The sampler sorts all indices again for each batch."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.manual_seed(0)


class ByLength(Sampler):
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return times(300)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        for number in range(times(300)):
            if not FIXED:
                order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)  # cause
            yield [order[(number * 16 + place) % len(order)] for place in range(16)]


rows = torch.randn(30_000, 64)
sampler = ByLength([index * 7919 % 1000 for index in range(30_000)])
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for (x,) in DataLoader(TensorDataset(rows), batch_sampler=sampler):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
