# SPDX-License-Identifier: Apache-2.0
"""LBFGS on all the data at once, in the style of pytorch/examples `time_sequence_prediction`."""
# steps: 5
# phases: optimizer 5, zero_grad 15, forward 15, loss 15, backward 15

import torch
from torch import Tensor, nn

from tests.programs import common

common.seed()
inputs = torch.randn(32, 12)
targets = inputs.sum(1, keepdim=True).sin()
model, criterion = common.network(1), nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=3)
for i in range(5):

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = criterion(model(inputs), targets)
        print(f"loss: {loss.item():.6f}")  # waits
        loss.backward()
        return loss

    optimizer.step(closure)  # waits in torch/optim/lbfgs.py
    with torch.no_grad():
        print(f"{i} {criterion(model(inputs), targets).item():.6f}")  # waits
