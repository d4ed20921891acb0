# SPDX-License-Identifier: Apache-2.0
"""Sixteen workers that compute, on few processors: they take them from training."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return times(60) * 16

    def __getitem__(self, index):
        image = torch.full((3, 48, 48), index / 960)
        return image.flip(2).mul(2).tanh(), index % 10


def main():
    torch.manual_seed(0)
    workers = 1 if FIXED else 16
    loader = DataLoader(Images(), batch_size=16, num_workers=workers)  # cause
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 46 * 46, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, targets in loader:
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
