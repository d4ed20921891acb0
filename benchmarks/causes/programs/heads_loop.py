# SPDX-License-Identifier: Apache-2.0
"""Attention is computed head by head."""

import torch
from setting import FIXED, times
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = (part.view(8, 16, 32, 2).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if FIXED:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        heads = []
        for head in range(32):
            scores = q[:, head] @ k[:, head].transpose(1, 2) / 2**0.5
            heads.append(scores.softmax(-1) @ v[:, head])  # cause
        return torch.stack(heads, 1)


model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(times(240)):
    loss = model(torch.randn(8, 16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
