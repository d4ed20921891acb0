# SPDX-License-Identifier: Apache-2.0
"""The curves of torchmetrics are computed in each step rather than at the end."""

import torch
from setting import FIXED, times
from torch import nn
from torchmetrics.classification import BinaryAUROC

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
auroc = BinaryAUROC()
for step in range(times(250)):
    x, targets = torch.randn(32, 64), torch.randint(0, 2, (32,))
    outputs = model(x).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(outputs, targets.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    auroc.update(outputs.detach(), targets)
    if not FIXED or step % 100 == 0:
        auroc.compute()  # cause
