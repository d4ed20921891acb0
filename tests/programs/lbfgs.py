# SPDX-License-Identifier: Apache-2.0
"""An optimizer that runs forward and backward itself, as often as it likes."""
# steps: 4
# phases: optimizer 4

import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common

common.seed()
model = common.network()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
calls = 0
for inputs, labels in common.loader(4):

    def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
        global calls
        calls += 1
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    print(f"{optimizer.step(closure).item():.6f}")  # waits
print(calls)
