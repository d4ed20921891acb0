# SPDX-License-Identifier: Apache-2.0
"""As many batches as a script is told to train, epoch after epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor
from torch.utils.data import DataLoader


def batches(loader: DataLoader[tuple[Tensor, ...]], steps: int) -> Iterator[tuple[Tensor, ...]]:
    """The loader's batches. The loader is started again at its end."""
    epochs = itertools.repeat(loader)
    return itertools.islice(itertools.chain.from_iterable(epochs), steps)
