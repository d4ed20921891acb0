# SPDX-License-Identifier: Apache-2.0
"""Another thread computes in Python all the time."""

import threading

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
stop = threading.Event()


def count_words():
    words = 0
    while not stop.is_set():
        words += len(["some", "words", "of", "a", "text"])  # cause


if not FIXED:
    threading.Thread(target=count_words, daemon=True).start()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(400)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stop.set()
