# SPDX-License-Identifier: Apache-2.0
"""A gradient scaler on the CPU. In step 2 the gradients overflow, and it leaves the update out."""
# steps: 6
# phases: data 6, zero_grad 6, forward 6, loss 6, backward 6, optimizer 6

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
loader, model = common.loader(), common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(common.DEVICE.type, init_scale=1024.0)
for i, (inputs, labels) in enumerate(loader):
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
    optimizer.zero_grad()
    with torch.autocast(common.DEVICE.type, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(inputs).float(), labels)
    if i == 2:
        loss = loss * float("inf")
    before = [parameter.clone() for parameter in model.parameters()]
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # waits in torch/amp/grad_scaler.py
    scaler.update()
    is_same = all(map(torch.equal, before, model.parameters()))  # waits
    print(f"{is_same} {scaler.get_scale()}")  # waits
