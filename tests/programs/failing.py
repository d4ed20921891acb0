# SPDX-License-Identifier: Apache-2.0
"""An exception in a network's forward pass, in the middle of the fourth step."""
# steps: 4
# phases: data 4, zero_grad 4, forward 4, loss 3, backward 3, optimizer 3

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs import common


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = common.network()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("out of luck")
        output: Tensor = self.body(inputs)
        return output


common.seed()
model = Fragile().to(common.DEVICE)  # waits
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in common.loader():
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")  # waits
