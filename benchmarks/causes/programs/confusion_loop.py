# SPDX-License-Identifier: Apache-2.0
"""A confusion matrix is counted in a loop over the batch."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
confusion = torch.zeros(10, 10)


def count(outputs, labels):
    guesses = outputs.argmax(1)
    if FIXED:
        confusion.index_put_((labels, guesses), torch.ones(len(labels)), accumulate=True)
        return
    for label, guess in zip(labels, guesses, strict=True):
        confusion[label, guess] += 1  # cause


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(720)):
    labels = torch.randint(0, 10, (128,))
    outputs = model(torch.randn(128, 64))
    loss = nn.functional.cross_entropy(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count(outputs, labels)
