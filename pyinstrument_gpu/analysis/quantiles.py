# SPDX-License-Identifier: Apache-2.0
"""Quantiles of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantiles(values: NDArray[Any], shares: Sequence[float]) -> list[Any]:
    """By nearest rank: for each share, the least value that this share of the values does not
    exceed. There must be a value. Sorts a copy.

    As `np.quantile` with `inverted_cdf`, for which numpy imports `numpy.ma` (see `distinct`).
    """
    ascending = np.sort(values)
    count = len(ascending)
    return [ascending[max(math.ceil(share * count), 1) - 1].item() for share in shares]
