# SPDX-License-Identifier: Apache-2.0
"""The text that the language models learn: the documentation of Python that `help()` prints."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


class Text:
    """All topics as one sequence of characters.

    Attributes:
        characters: those that occur, sorted. A token is an index into them.
        tokens: int64.
    """

    def __init__(self) -> None:
        text = "".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        token_of = {character: token for token, character in enumerate(self.characters)}
        self.tokens = torch.tensor([token_of[character] for character in text])

    def windows(self, length: int) -> TensorDataset:
        """Stretches of so many characters that do not overlap, and beside each of their characters
        the one that follows."""
        count = (len(self.tokens) - 1) // length
        inputs = self.tokens[: count * length].view(count, length)
        targets = self.tokens[1 : count * length + 1].view(count, length)
        return TensorDataset(inputs, targets)

    def split(self) -> tuple[Tensor, Tensor]:
        """The first nine tenths of the tokens for training, the rest for validation."""
        training = len(self.tokens) * 9 // 10
        return self.tokens[:training], self.tokens[training:]
