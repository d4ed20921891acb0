# SPDX-License-Identifier: Apache-2.0
"""A language model of characters: an LSTM."""

from __future__ import annotations

from torch import Tensor, nn

LAYERS = 2
HIDDEN = 128


class LanguageModel(nn.Module):
    """Tells the logits of the next character, after each of those that it is given."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, characters)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(batch, length) tokens to (batch, length, characters) logits."""
        output, _ = self.lstm(self.embedding(tokens), state)
        logits: Tensor = self.head(output)
        return logits
