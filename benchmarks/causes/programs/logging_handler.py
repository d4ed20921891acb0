# SPDX-License-Identifier: Apache-2.0
"""A handler of logging that takes long, each tenth step."""

import logging
import time

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
log = logging.getLogger("training")
log.propagate = False


class Remote(logging.Handler):
    def emit(self, record):
        time.sleep(0.03)  # cause


if not FIXED:
    log.addHandler(Remote())
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(times(300)):
    loss = model(torch.randn(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        log.warning("step %d: loss %.4f", step, loss.item())
