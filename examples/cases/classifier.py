# SPDX-License-Identifier: Apache-2.0
"""A classifier of images: three convolutions."""

from __future__ import annotations

from torch import nn

from examples.cases.images import CLASSES, SIZE


class Classifier(nn.Sequential):
    """1 x SIZE x SIZE pixels to the logits of the classes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(1, width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * (SIZE // 8) ** 2, CLASSES),
        )
