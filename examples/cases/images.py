# SPDX-License-Identifier: Apache-2.0
"""The images that the classifiers learn: the handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLASSES = 10
SIZE = 32
"""Pixels per side. The digits have 8, and most classifiers take 32 or more."""


def load_images() -> tuple[Tensor, Tensor]:
    """1797 images, float32 of 1 x SIZE x SIZE between 0 and 1, and their labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = nn.functional.interpolate(images, (SIZE, SIZE), mode="bilinear")
    return images, torch.tensor(digits.target)
