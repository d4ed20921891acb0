# SPDX-License-Identifier: Apache-2.0
"""Generator and discriminator, which alternate within one batch."""
# steps: 6
# phases: forward 24, eval 6, backward 12, optimizer 6, optimizer 2 6

import torch
from torch import nn

from tests.programs import common

common.seed()
loader = common.loader()
generator, discriminator = nn.Linear(4, 12), common.network(1)
optimizer_g = torch.optim.Adam(generator.parameters())
optimizer_d = torch.optim.Adam(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(common.BATCH, 1), torch.zeros(common.BATCH, 1)
for real, _ in loader:
    optimizer_d.zero_grad()
    with torch.no_grad():
        fake = generator(torch.randn(common.BATCH, 4))
    loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(generator(torch.randn(common.BATCH, 4))), ones)
    loss_g.backward()
    optimizer_g.step()
    print(f"{loss_d.item():.6f} {loss_g.item():.6f}")  # waits
