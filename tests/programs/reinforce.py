# SPDX-License-Identifier: Apache-2.0
"""Policy gradients on a walk, in the style of pytorch/examples `reinforcement_learning`.

Each episode runs the policy several times and updates it once. Returns are gathered as tensors of
no dimension and become one by `torch.tensor`.
"""
# steps: 6
# phases: forward 30, zero_grad 6, backward 6, optimizer 6

import random

import torch
from torch import Tensor
from torch.distributions import Categorical

from tests.programs import common

common.seed()
policy = common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(6):
    position, log_probabilities, rewards = torch.zeros(12, device=common.DEVICE), [], []
    for _ in range(5):
        choices = Categorical(logits=policy(position))  # waits in distributions/distribution.py
        action = choices.sample()  # waits not: up to torch 2.12 it does
        log_probabilities.append(choices.log_prob(action))  # waits in distributions/distribution.py
        position = position.roll(1 if action.item() else -1)  # waits
        position[0] += random.random()
        rewards.append(position[0].clone())
    returns: list[Tensor] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + 0.9 * (returns[0] if returns else 0.0))
    gathered = torch.tensor(returns)  # waits
    gathered = (gathered - gathered.mean()) / (gathered.std() + 1e-6)
    loss = torch.stack([-p * r for p, r in zip(log_probabilities, gathered, strict=True)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{episode} {loss.item():.6f}")  # waits
