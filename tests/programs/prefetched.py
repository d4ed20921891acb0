# SPDX-License-Identifier: Apache-2.0
"""Gradients of four batches, which are fetched before the first of them is used."""
# steps: 6
# phases: data 24, forward 24, loss 24, backward 24, optimizer 6, zero_grad 6

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
loader, model = common.loader(24), common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.Adam(model.parameters())
batches = iter(loader)
for step in range(6):
    for inputs, labels in [next(batches) for _ in range(4)]:
        inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
        loss = functional.cross_entropy(model(inputs), labels) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step} {loss.item():.6f}")  # waits
