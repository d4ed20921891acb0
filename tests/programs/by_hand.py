# SPDX-License-Identifier: Apache-2.0
"""A word model's loop: no loader, and an update without an optimizer."""

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
model = common.network()
inputs, labels = common.dataset(5).tensors
for i in range(5):
    batch = slice(i * common.BATCH, (i + 1) * common.BATCH)
    model.zero_grad()
    loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
    print(f"{loss.item():.6f}")
