# SPDX-License-Identifier: Apache-2.0
"""The workers' memory grows, as each copies the pages of a long list that it only reads."""

import random

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        names = [f"/data/{number:09}.jpg" for number in range(1_500_000)]
        self.rows = "".join(names) if FIXED else names  # cause
        self.order = random.Random(0)

    def __len__(self):
        return times(60) * 512

    def __getitem__(self, index):
        place = self.order.randrange(1_500_000)
        name = self.rows[19 * place : 19 * place + 19] if FIXED else self.rows[place]
        return torch.tensor([float(ord(letter)) for letter in name[6:15]])


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for rows in DataLoader(Rows(), batch_size=512, num_workers=1):
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
