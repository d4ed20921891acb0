# SPDX-License-Identifier: Apache-2.0
"""The digits, each turned and moved a little when it is fetched: what loader workers are for."""

from __future__ import annotations

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.utils.data import Dataset

from examples.cases.images import load_images

_TURNED_DEGREES = 15.0
_MOVED_PIXELS = 3.0


class AugmentedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Each image has random numbers of its own, so that what is trained does not depend on the
    number of workers."""

    def __init__(self) -> None:
        self._images, self._labels = load_images()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng(index)
        pixels = self._images[index, 0].numpy()
        turned = ndimage.rotate(
            pixels, random.uniform(-_TURNED_DEGREES, _TURNED_DEGREES), reshape=False, order=3
        )
        moved = ndimage.shift(turned, random.uniform(-_MOVED_PIXELS, _MOVED_PIXELS, 2), order=3)
        noisy = moved + random.normal(scale=0.05, size=moved.shape)
        image = torch.from_numpy(noisy.clip(0, 1).astype(np.float32)).unsqueeze(0)
        return image, self._labels[index]
