# SPDX-License-Identifier: Apache-2.0
"""One worker waits for a remote store; more of them would wait at the same time."""

import time

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return times(60) * 8

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((64,), index / 480)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Remote(), batch_size=8, num_workers=6 if FIXED else 1)  # cause
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rows in loader:
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
