# SPDX-License-Identifier: Apache-2.0
"""Workers for a data set that is in memory: handing batches over costs more than making them."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(6400, 64), torch.randint(0, 10, (6400,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=0 if FIXED else 4)  # cause
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(times(5)):
        for rows, targets in loader:
            loss = nn.functional.cross_entropy(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
