# SPDX-License-Identifier: Apache-2.0
"""A small GPT of characters, in the style of nanoGPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CONTEXT = 64
"""How many characters it looks at."""
_WIDTH = 64
_HEADS = 4
_BLOCKS = 2


class Block(nn.Module):
    """Attention to the characters before, and a network for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.queries_keys_values = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.projection = nn.Linear(_WIDTH, _WIDTH)
        self.network = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.queries_keys_values(self.attention_norm(x)).view(
            batch, length, 3, _HEADS, _WIDTH // _HEADS
        )
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(found.transpose(1, 2).reshape(batch, length, _WIDTH))
        changed: Tensor = x + self.network(x)
        return changed


class GPT(nn.Module):
    """Tells the logits of the next character, after each of those that it is given."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, _WIDTH)
        self.positions = nn.Embedding(CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, characters))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) tokens to (batch, length, characters) logits."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        logits: Tensor = self.head(x)
        return logits


def random_windows(tokens: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stretches of `CONTEXT` characters from anywhere, and the characters that follow each."""
    starts = torch.randint(len(tokens) - CONTEXT, (count,), generator=generator).tolist()
    inputs = torch.stack([tokens[start : start + CONTEXT] for start in starts])
    targets = torch.stack([tokens[start + 1 : start + CONTEXT + 1] for start in starts])
    return inputs, targets
