# SPDX-License-Identifier: Apache-2.0
"""Each item is parsed from a line of text."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
lines = [",".join(f"{row * column % 89}.5" for column in range(200)) for row in range(400)]
parsed = torch.tensor([[float(one) for one in line.split(",")] for line in lines])


class Rows(Dataset):
    def __len__(self):
        return times(360) * 64

    def __getitem__(self, index):
        if FIXED:
            return parsed[index % 400]
        return torch.tensor([float(one) for one in lines[index % 400].split(",")])  # cause


model = nn.Linear(200, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for rows in DataLoader(Rows(), batch_size=64):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
