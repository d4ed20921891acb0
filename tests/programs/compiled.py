# SPDX-License-Identifier: Apache-2.0
"""A network that torch.compile traces whole, and traces again for the last, shorter batch."""
# steps: 7
# phases: data 7, zero_grad 7, forward 7, loss 7, backward 7, optimizer 7

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.programs import common

common.seed()
inputs = torch.randn(6 * common.BATCH + 3, 12)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=common.BATCH)
network = common.network().to(common.DEVICE)  # waits
model = torch.compile(network, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for inputs, labels in loader:
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")  # waits
