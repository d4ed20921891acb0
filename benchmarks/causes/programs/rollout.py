# SPDX-License-Identifier: Apache-2.0
"""An environment in Python, which acts for many steps before each update."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)


@torch.no_grad()
def rollout(steps=128):
    state, states = torch.zeros(8), []
    for _ in range(steps):
        state = torch.tanh(state + policy(state) + 0.1)  # cause
        states.append(state)
    return torch.stack(states)


@torch.no_grad()
def rollout_of_many():
    state, states = torch.zeros(32, 8), []
    for _ in range(4):
        state = torch.tanh(state + policy(state) + 0.1)
        states.append(state)
    return torch.cat(states)


for _ in range(times(150)):
    states = (rollout_of_many if FIXED else rollout)()
    for _ in range(2):
        loss = policy(states).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
