# SPDX-License-Identifier: Apache-2.0
"""All is in double precision, as the data came from numpy."""

import numpy as np
import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
rows = np.random.default_rng(0).normal(size=(256, 512))
x = torch.from_numpy(rows)  # cause
if FIXED:
    x = x.float()
model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(512, 512), nn.ReLU())))
model.to(x.dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(120)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
