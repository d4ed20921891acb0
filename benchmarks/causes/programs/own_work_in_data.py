# SPDX-License-Identifier: Apache-2.0
"""The workers are never late, but the main process itself works on each batch they bring."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return times(300) * 16

    def __getitem__(self, index):
        return torch.full((64,), index / 4800), index % 10


class Batches:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for rows, targets in self.loader:
            if FIXED:
                yield rows.clamp(max=0.9), targets
            else:
                lists = [[min(value, 0.9) for value in row] for row in rows.tolist() * 8]  # cause
                yield torch.tensor(lists[:16]), targets


def main():
    torch.manual_seed(0)
    loader = DataLoader(Rows(), batch_size=16, num_workers=1, prefetch_factor=4)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows, targets in Batches(loader):
        loss = nn.functional.cross_entropy(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
