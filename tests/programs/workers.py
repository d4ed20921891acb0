# SPDX-License-Identifier: Apache-2.0
"""A loader with worker processes."""
# steps: 12
# phases: forward 12, loss 12, backward 12, optimizer 12

import torch
from torch.nn import functional

from tests.programs import common

if __name__ == "__main__":
    common.seed()
    model = common.network()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = common.loader(workers=2)
    for _ in range(2):
        for inputs, labels in loader:
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"{loss.item():.6f}")  # waits
