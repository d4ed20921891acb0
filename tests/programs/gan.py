# SPDX-License-Identifier: Apache-2.0
"""Generator and discriminator, which alternate within one batch."""
# steps: 6
# phases: data 6, zero_grad 12, forward 24, no_grad 6, loss 18, backward 12, optimizer 6,
#   optimizer 2 6

import torch
from torch import nn

from tests.programs import common

common.seed()
loader = common.loader()
generator = nn.Linear(4, 12).to(common.DEVICE)  # waits
discriminator = common.network(1).to(common.DEVICE)  # waits
optimizer_g = torch.optim.Adam(generator.parameters())
optimizer_d = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
ones = torch.ones(common.BATCH, 1, device=common.DEVICE)
zeros = torch.zeros(common.BATCH, 1).to(common.DEVICE)  # waits
for real, _ in loader:
    real = real.to(common.DEVICE)  # waits
    optimizer_d.zero_grad()
    with torch.no_grad():
        fake = generator(torch.randn(common.BATCH, 4, device=common.DEVICE))
    loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    noise = torch.randn(common.BATCH, 4, device=common.DEVICE)
    loss_g = criterion(discriminator(generator(noise)), ones)
    loss_g.backward()
    optimizer_g.step()
    print(f"{loss_d.item():.6f} {loss_g.item():.6f}")  # waits
