# SPDX-License-Identifier: Apache-2.0
"""Gradients of three batches make one update; the last batch of an epoch is left over."""
# steps: 6
# phases: data 14, data end 2, forward 14, loss 14, backward 14, optimizer 4, zero_grad 4

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
loader, model = common.loader(7), common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.Adam(model.parameters())
optimizer.zero_grad()
for epoch in range(2):
    for i, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
        loss = functional.cross_entropy(model(inputs), labels) / 3
        loss.backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"{epoch} {loss.item():.6f}")  # waits
