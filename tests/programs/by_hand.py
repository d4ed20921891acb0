# SPDX-License-Identifier: Apache-2.0
"""A regression without a module, a loader or an optimizer, in the style of PyTorch's tutorials."""
# steps: 10
# phases: loss 10, backward 10
# phases, unseen: loss 1

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.linspace(-1, 1, 40, device=device)
y = torch.sin(3 * x)
powers = torch.tensor([1, 2, 3], device=device)  # waits
features = x.unsqueeze(-1).pow(powers)
weights: torch.Tensor = torch.nn.Parameter(torch.zeros(3, device=device))
for t in range(10):
    loss = functional.mse_loss(features @ weights, y)
    loss.backward()
    with torch.no_grad():
        assert weights.grad is not None
        weights -= 0.1 * weights.grad
        weights.grad = None
    if t % 5 == 4:
        print(t, loss)  # waits
print([f"{weight:.5f}" for weight in weights.tolist()])  # waits
