# SPDX-License-Identifier: Apache-2.0
"""A transform in Python loops, in the main process."""

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader, Dataset


def sharpen(image):
    rows = image.tolist()
    for y in range(1, 27):
        for x in range(1, 27):
            rows[y][x] = 2 * rows[y][x] - (rows[y - 1][x] + rows[y + 1][x]) / 2  # cause
    return torch.tensor(rows)


def sharpen_at_once(image):
    image[1:27] = 2 * image[1:27] - (image[:26] + image[2:]) / 2
    return image


class Images(Dataset):
    def __len__(self):
        return times(250) * 16

    def __getitem__(self, index):
        image = torch.rand(28, 28)
        return (sharpen_at_once if FIXED else sharpen)(image), index % 10


torch.manual_seed(0)
loader = DataLoader(Images(), batch_size=16)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for images, targets in loader:
    loss = nn.functional.cross_entropy(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
