# SPDX-License-Identifier: Apache-2.0
"""Metrics of a training loop, accumulated without a wait. See docs/metrics.md."""

from __future__ import annotations

from pyinstrument_gpu.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingDependencyError("metrics need PyTorch 2.10 or newer: pip install torch") from error

from pyinstrument_gpu.metrics.accumulator import MetricAccumulator
from pyinstrument_gpu.metrics.values import Reading
from pyinstrument_gpu.metrics.window import tqdm_postfix

__all__ = ["MetricAccumulator", "Reading", "tqdm_postfix"]
