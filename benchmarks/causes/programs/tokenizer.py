# SPDX-License-Identifier: Apache-2.0
"""Texts are tokenized in the loop, again in each epoch."""

import random
import re

import torch
from setting import FIXED, times
from torch import nn

PIECES = re.compile(r"\w+|[^\w\s]")
VOCABULARY = {}


def tokenize(text):
    ids = []
    for piece in PIECES.findall(text):
        for size in range(len(piece), 0, -1):
            ids.append(VOCABULARY.setdefault(piece[:size].lower(), len(VOCABULARY)) % 5000)  # cause
    return torch.tensor(ids[:64])


def main():
    torch.manual_seed(0)
    random.seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(random.choices(letters, k=8)) for _ in range(500)]
    texts = [" ".join(random.choices(words, k=150)) for _ in range(320)]
    ready = [tokenize(text) for text in texts] if FIXED else None
    model = nn.Sequential(nn.Embedding(5000, 64), nn.Flatten(), nn.Linear(64 * 64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(times(10)):
        for start in range(0, len(texts), 16):
            if FIXED:
                ids = torch.stack(ready[start : start + 16])
            else:
                ids = torch.stack([tokenize(text) for text in texts[start : start + 16]])
            loss = model(ids).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
