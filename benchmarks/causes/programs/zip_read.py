# SPDX-License-Identifier: Apache-2.0
"""Each item is unpacked from an archive that is opened anew."""

import zipfile

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
with zipfile.ZipFile("data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for number in range(200):
        archive.writestr(f"{number}.bin", bytes(row * number % 251 for row in range(4096)))


class Rows(Dataset):
    def __init__(self):
        self.unpacked = {}

    def __len__(self):
        return times(60) * 32

    def __getitem__(self, index):
        name = f"{index % 200}.bin"
        if FIXED and name in self.unpacked:
            return self.unpacked[name]
        with zipfile.ZipFile("data.zip") as archive:  # cause
            data = archive.read(name)
        self.unpacked[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8).float()
        return self.unpacked[name]


model = nn.Linear(4096, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for rows in DataLoader(Rows(), batch_size=32):
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
