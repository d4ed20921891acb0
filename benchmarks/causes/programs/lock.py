# SPDX-License-Identifier: Apache-2.0
"""The loop waits for a lock that a thread holds while it writes."""

import threading
import time

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
lock = threading.Lock()
stop = threading.Event()
latest = {}


def write():
    while not stop.is_set():
        if FIXED:
            time.sleep(0.004)
            continue
        with lock:
            time.sleep(0.004)
        time.sleep(0.0005)


threading.Thread(target=write, daemon=True).start()


def publish(loss):
    with lock:  # cause
        latest["loss"] = loss


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(250)):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    publish(loss.item())
stop.set()
