# SPDX-License-Identifier: Apache-2.0
"""Validation after each epoch and within it; the first time before any training, and once without
`no_grad`."""
# steps: 12
# phases: data 12, zero_grad 12, forward 12, loss 12, backward 12, optimizer 12

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs import common


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)  # waits
    model.train()
    return correct / len(loader.dataset)  # type: ignore[arg-type]


common.seed()
train, held_out, model = common.loader(), common.loader(3), common.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
print(validate(model, held_out))
for _ in range(2):
    for i, (inputs, labels) in enumerate(train):
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i == 2:
            print(validate(model, held_out))
    print(validate(model, held_out))
model.eval()
print(sum(float(functional.cross_entropy(model(x), y).detach()) for x, y in held_out))  # waits
