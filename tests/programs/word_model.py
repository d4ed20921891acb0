# SPDX-License-Identifier: Apache-2.0
"""A recurrent word model, trained on slices of one long text, with an update written by hand.

The style of pytorch/examples `word_language_model`: no loader, no optimizer, and a learning rate
that is divided when the validation gets worse.
"""
# steps: 8
# phases: zero_grad 8, forward 8, loss 8, backward 8, clip 8

import math

import torch
from torch import Tensor, nn

from tests.programs import common

WORDS, LENGTH, COLUMNS = 20, 5, 4


class WordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, 8)
        self.recurrent = nn.LSTM(8, 8)
        self.decoder = nn.Linear(8, WORDS)

    def forward(
        self, words: Tensor, hidden: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, hidden = self.recurrent(self.encoder(words), hidden)
        return self.decoder(output).view(-1, WORDS), hidden


def batches(text: Tensor) -> list[tuple[Tensor, Tensor]]:
    starts = range(0, len(text) - 1, LENGTH)
    return [(text[i : i + LENGTH], text[i + 1 : i + 1 + LENGTH].flatten()) for i in starts]


common.seed()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
text = torch.randint(WORDS, (4 * LENGTH + 1, COLUMNS)).to(device)  # waits
model, criterion, rate, best = WordModel().to(device), nn.CrossEntropyLoss(), 1.0, math.inf  # waits
for epoch in range(2):
    model.train()
    zeros = torch.zeros(1, COLUMNS, 8, device=device)
    total, hidden = 0.0, (zeros, zeros)
    for words, targets in batches(text):
        model.zero_grad()
        hidden = (hidden[0].detach(), hidden[1].detach())
        output, hidden = model(words, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad, alpha=-rate)
        total += loss.item()  # waits
    print(f"{epoch} {total:.6f}")
    rate /= 1 if total < best else 4
    best = min(best, total)
