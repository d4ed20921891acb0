# SPDX-License-Identifier: Apache-2.0
"""A thread that holds a lock for long each time, which the loop takes in each step."""

import threading
import time

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
lock = threading.Lock()
losses = []


def upload():
    while True:
        with lock:
            time.sleep(0.0001 if FIXED else 0.004)
        time.sleep(0.002)


def note(loss):
    lock.acquire()  # cause
    losses.append(loss)
    lock.release()


threading.Thread(target=upload, daemon=True).start()
for _ in range(times(300)):
    loss = model(torch.randn(64, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    note(loss.item())
