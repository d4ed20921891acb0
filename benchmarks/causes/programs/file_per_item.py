# SPDX-License-Identifier: Apache-2.0
"""A file is opened, read and parsed for each item."""

import json
import tempfile

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = tempfile.mkdtemp(dir=".")
for number in range(200):
    with open(f"{FOLDER}/{number}.json", "w") as file:
        json.dump(
            {"row": [number / 7 + place for place in range(256)], "target": number % 10}, file
        )


def load(index):
    with open(f"{FOLDER}/{index % 200}.json") as file:  # cause
        item = json.load(file)  # cause
    return torch.tensor(item["row"]), item["target"]


READY = [load(index) for index in range(200)]


class Files(Dataset):
    def __len__(self):
        return times(300) * 32

    def __getitem__(self, index):
        return READY[index % 200] if FIXED else load(index)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for rows, targets in DataLoader(Files(), batch_size=32):
    loss = nn.functional.cross_entropy(model(rows), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
