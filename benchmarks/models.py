# SPDX-License-Identifier: Apache-2.0
"""Models whose training step takes some milliseconds on one core, each with data and an optimizer.

They are of the kinds that people train, small; what they learn is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions, and what came in added to what comes out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.relu(x + self.body(x))
        return y


class TransformerBlock(nn.Module):
    """Causal attention and a feed-forward part, each behind a norm and with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_1(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.feed_forward(self.norm_2(x))
        return y


@dataclass
class Training:
    """A model that goes on being trained, in parts that can be marked.

    Attributes:
        parts: what a step does, by phase, in order.
    """

    model: nn.Module
    parts: dict[str, Callable[[], None]]


def _training(model: nn.Module, x: Tensor, y: Tensor) -> Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    state: dict[str, Any] = {}

    def data() -> None:
        state["x"], state["y"] = x.clone(), y.clone()

    def forward() -> None:
        logits = model(state["x"])
        state["loss"] = functional.cross_entropy(logits.flatten(0, -2), state["y"].flatten())

    def backward() -> None:
        state["loss"].backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Training(
        model, {"data": data, "forward": forward, "backward": backward, "optimizer": step}
    )


def small_mlp() -> Training:
    """784 pixels, two hidden layers of 512, batches of 64."""
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    return _training(model, torch.randn(64, 784), torch.randint(10, (64,)))


def residual_cnn() -> Training:
    """Images of 32 x 32, two residual blocks of 16 channels, batches of 8."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return _training(model, torch.randn(8, 3, 32, 32), torch.randint(10, (8,)))


def gpt_block() -> Training:
    """One block of a GPT of width 128, 4 heads, 256 words, 4 texts of 64 words."""
    model = nn.Sequential(
        nn.Embedding(256, 128), TransformerBlock(128, 4), nn.LayerNorm(128), nn.Linear(128, 256)
    )
    return _training(model, torch.randint(256, (4, 64)), torch.randint(256, (4, 64)))
