# SPDX-License-Identifier: Apache-2.0
"""Other programs compute on the processors of this one."""

import atexit
import subprocess
import sys

import torch
from setting import FIXED, times
from torch import nn

for _ in range(0 if FIXED else 4):
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    atexit.register(other.kill)
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(200)):
    loss = model(torch.randn(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
