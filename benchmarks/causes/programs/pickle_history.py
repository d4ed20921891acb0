# SPDX-License-Identifier: Apache-2.0
"""All outputs are pickled at each step."""

import pickle

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
outputs = []


def keep(output):
    outputs.append(output.detach().numpy())
    with open("outputs.pickle", "wb") as file:
        pickle.dump(outputs[-1:] if FIXED else outputs[-200:], file)  # cause


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(times(500)):
    output = model(torch.randn(128, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keep(output)
