# SPDX-License-Identifier: Apache-2.0
"""Phase "data": waiting for the next item of a DataLoader, the start of its workers included."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from pyinstrument_gpu.auto.session import Session
from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording import steps

_data = native.gpu_phase("data")
_gpu_steps_code = steps._Steps.__iter__.__code__


def install(session: Session) -> None:
    """Patch `DataLoader.__iter__` and the `__next__` of its iterators."""
    # Which loader an iterator is of; a loader stands for itself.
    loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(self: Any) -> Any:
            # gpu_steps times the wait itself.
            if session.passes_by() or sys._getframe(1).f_code is _gpu_steps_code:
                return original(self)
            detector = session.detector
            is_start = isinstance(self, DataLoader)
            loader = self if is_start else loaders.get(self)
            token = session.begin(_data, detector.asks_for_item, loader, torch.is_grad_enabled())
            try:
                result = original(self)
            except StopIteration:
                native.frame_cancel(_data, token)
                token = 0
                session.tell(detector.got_none, loader)
                raise
            finally:
                session.end(_data, token)
            if is_start:
                session.tell(loaders.__setitem__, result, self)
            else:
                session.tell(lambda: detector.got_item(_samples_of(result, loader)))
            return result

        return wrapper

    session.patches.wrap(DataLoader, "__iter__", wrap)
    session.patches.wrap(dataloader._BaseDataLoaderIter, "__next__", wrap)


def _samples_of(item: object, loader: object) -> float:
    """The length of the first tensor of a batch. NaN for what the loader did not batch."""
    if loader is None or getattr(loader, "batch_sampler", None) is None:
        return math.nan
    while not isinstance(item, torch.Tensor):
        if isinstance(item, Mapping):
            item = next(iter(item.values()), None)
        elif isinstance(item, Sequence) and not isinstance(item, str) and item:
            item = item[0]
        else:
            return math.nan
    return float(item.shape[0]) if item.dim() else math.nan
