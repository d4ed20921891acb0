# SPDX-License-Identifier: Apache-2.0
"""A loader with worker processes."""
# steps: 12
# phases: data 12, zero_grad 12, forward 12, loss 12, backward 12, optimizer 12
# loader workers: 2

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs import common

if __name__ == "__main__":
    common.seed()
    model = common.network().to(common.DEVICE)  # waits
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(common.dataset(), common.BATCH, num_workers=2, pin_memory=True)
    for _ in range(2):
        for inputs, labels in loader:
            inputs = inputs.to(common.DEVICE, non_blocking=True)
            labels = labels.to(common.DEVICE, non_blocking=True)
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"{loss.item():.6f}")  # waits
