# SPDX-License-Identifier: Apache-2.0
"""Each item of the data set is made of a list of Python numbers."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Rows(Dataset):
    def __init__(self):
        self.rows = [[float(column * row % 97) for column in range(784)] for row in range(512)]
        self.tensors = torch.tensor(self.rows)

    def __len__(self):
        return times(120) * 64

    def __getitem__(self, index):
        if FIXED:
            return self.tensors[index % 512]
        return torch.tensor(self.rows[index % 512])  # cause


model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for rows in DataLoader(Rows(), batch_size=64):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
