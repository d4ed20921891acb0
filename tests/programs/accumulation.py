# SPDX-License-Identifier: Apache-2.0
"""Gradients of three batches make one update; the last batch of an epoch is left over."""
# steps: 6
# phases: forward 14, loss 14, backward 14, optimizer 4

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
loader, model = common.loader(7), common.network()
optimizer = torch.optim.Adam(model.parameters())
optimizer.zero_grad()
for epoch in range(2):
    for i, (inputs, labels) in enumerate(loader):
        loss = functional.cross_entropy(model(inputs), labels) / 3
        loss.backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"{epoch} {loss.item():.6f}")  # waits
