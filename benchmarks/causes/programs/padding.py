# SPDX-License-Identifier: Apache-2.0
"""Now and then one long text pads all others of its batch."""

import random

import torch
from setting import FIXED, times
from torch import nn
from torch.utils.data import DataLoader

random.seed(0)
torch.manual_seed(0)
lengths = [
    512 if random.random() < 0.008 else random.randint(16, 32) for _ in range(times(200) * 16)
]
if FIXED:
    lengths.sort()
texts = [torch.randint(0, 1000, (length,)) for length in lengths]


def collate(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True)  # cause


loader = DataLoader(texts, batch_size=16, collate_fn=collate)
layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
model = nn.Sequential(nn.Embedding(1000, 32), layer, nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for ids in loader:
    loss = model(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
