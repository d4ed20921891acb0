# SPDX-License-Identifier: Apache-2.0
"""A generator instead of a loader, an evaluation in between, and something else afterwards."""
# steps: 10
# phases: zero_grad 10, forward 10, loss 10, backward 10, optimizer 10

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        inputs = torch.randn(common.BATCH, 12)
        yield inputs, (inputs.sum(1) > 0).long()


common.seed()
model = common.network()
optimizer = torch.optim.NAdam(model.parameters())
for i, (inputs, labels) in enumerate(batches(10)):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    if i == 4:
        with torch.inference_mode():
            print(f"{model(inputs).sum().item():.5f}")  # waits
print(f"{loss.item():.6f}")  # waits
print(sum(float(p.detach().abs().sum()) for p in model.parameters()) > 0)  # waits
