# SPDX-License-Identifier: Apache-2.0
"""Autocast with a scaler that is off where there is no GPU, as many scripts have it."""
# steps: 6
# phases: data 6, zero_grad 6, forward 6, loss 6, backward 6, clip 6, optimizer 6

import torch
from torch import nn

from tests.programs import common

common.seed()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_amp = device.type == "cuda"
model, criterion = common.network().to(device), nn.CrossEntropyLoss()  # waits
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
total = torch.zeros(1, device=device)
for inputs, labels in common.loader():
    inputs, labels = inputs.to(device), labels.to(device)  # waits
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = criterion(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # waits, unseen: without a GPU the scaler is off
    scaler.update()
    total += loss.detach().float()
print(f"{total.item():.6f} {scaler.get_scale()}")  # waits
