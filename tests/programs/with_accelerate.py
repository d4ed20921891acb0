# SPDX-License-Identifier: Apache-2.0
"""A loop of Accelerate's, which decides which batches make an update and moves them itself."""
# steps: 6
# phases: data 12, data end 2, forward 12, loss 12, backward 12, clip 6, optimizer 6, zero_grad 6

import torch
from accelerate import Accelerator
from torch.nn import functional

from tests.programs import common

common.seed()
accelerator = Accelerator(gradient_accumulation_steps=2)
network = common.network()
parts = (network, torch.optim.AdamW(network.parameters(), lr=1e-2), common.loader())
model, optimizer, loader = accelerator.prepare(*parts)  # waits in accelerate/accelerator.py
for epoch in range(2):
    model.train()
    for inputs, labels in loader:  # waits in accelerate/utils/operations.py
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"{epoch} {loss.item():.6f}")  # waits
