# SPDX-License-Identifier: Apache-2.0
"""The plain loop, with a schedule, clipped gradients and a checkpoint per epoch."""
# steps: 12
# phases: data 12, zero_grad 12, forward 12, loss 12, backward 12, optimizer 12, clip 12

import io

import torch
from torch import nn

from tests.programs import common

common.seed()
loader, criterion = common.loader(), nn.CrossEntropyLoss()
model = common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
for _ in range(2):
    model.train()
    for inputs, labels in loader:
        inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"{loss.item():.6f}")  # waits
    scheduler.step()
    torch.save(model.state_dict(), io.BytesIO())  # waits, unseen: a file is not followed
