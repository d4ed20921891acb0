# SPDX-License-Identifier: Apache-2.0
"""An optimizer that runs forward and backward itself, as often as it likes."""
# steps: 4
# phases: data 4, optimizer 4, zero_grad 16, forward 16, loss 16, backward 16

import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common

common.seed()
model = common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
calls = 0
for inputs, labels in common.loader(4):
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits

    def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
        global calls
        calls += 1
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    print(f"{optimizer.step(closure).item():.6f}")  # waits in torch/optim/lbfgs.py
print(calls)
