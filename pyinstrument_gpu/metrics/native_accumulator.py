# SPDX-License-Identifier: Apache-2.0
"""The native side of an accumulator, where there is one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyinstrument_gpu.metrics import device_memory
from pyinstrument_gpu.metrics.accumulator_options import AccumulatorOptions
from pyinstrument_gpu.metrics.program_warning import warn
from pyinstrument_gpu.native import IMPORT_ERROR, native


def new_native(options: AccumulatorOptions, counts: Sequence[int] | None) -> Any:
    """A `_C.MetricAccumulator` whose state has so many updates and numbers; None where there is
    none, and the reference has to do all work."""
    if IMPORT_ERROR is not None or not _torch_is_known():
        return None
    return native.MetricAccumulator(task=options.task, counts=counts, **options.native_arguments())


@functools.cache
def _torch_is_known() -> bool:
    api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    known = api is not None and native.set_torch(
        Tensor, api, torch.get_num_threads, device_memory.record_stream
    )
    if not known:
        warn(
            "metrics are updated by many small kernels, which is slower: "
            f"PyTorch {torch.__version__} has no DLPack C exchange API of version 1; 2.10 and "
            "newer have it"
        )
    return known
