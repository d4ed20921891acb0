# SPDX-License-Identifier: Apache-2.0
"""Items are read from a file that the page cache never holds."""

import os

import numpy as np
import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 1 << 16
with open("items.bin", "wb") as file:
    file.write(np.zeros(SIZE * 128, np.uint8))
    os.fsync(file.fileno())


class Items(Dataset):
    file = os.open("items.bin", os.O_RDONLY)

    def __len__(self):
        return times(200) * 8

    def __getitem__(self, index):
        if not FIXED:
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        data = os.pread(self.file, SIZE, index % 128 * SIZE)  # cause
        return torch.frombuffer(bytearray(data[:1024]), dtype=torch.uint8).float()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for rows in DataLoader(Items(), batch_size=8):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
