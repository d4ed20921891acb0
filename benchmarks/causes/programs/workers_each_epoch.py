# SPDX-License-Identifier: Apache-2.0
"""Workers are started anew for each of many short epochs."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 64), torch.randint(0, 10, (160,)))
    loader = DataLoader(data, 16, num_workers=2, persistent_workers=FIXED)  # cause
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(times(12)):
        for rows, targets in loader:
            loss = nn.functional.cross_entropy(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
