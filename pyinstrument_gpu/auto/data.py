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
    # Which loader an iterator is of.
    loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def passes_by() -> bool:
        # gpu_steps times the wait itself: it is the caller of the wrapper that asks.
        return session.passes_by() or sys._getframe(2).f_code is _gpu_steps_code

    def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __iter__(self: Any) -> Any:
            if passes_by():
                return original(self)
            detector = session.detector
            token = session.begin(_data, detector.asks_for_item, self, torch.is_grad_enabled())
            try:
                iterator = original(self)
            finally:
                session.end(_data, token)
            session.tell(loaders.__setitem__, iterator, self)
            return iterator

        return __iter__

    def wrap_next(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            if passes_by():
                return original(self)
            detector = session.detector
            loader = loaders.get(self)
            token = session.begin(_data, detector.asks_for_item, loader, torch.is_grad_enabled())
            try:
                item = original(self)
            except StopIteration:
                native.frame_cancel(_data, token)
                token = 0
                session.tell(detector.got_none, loader)
                raise
            finally:
                native.set_in_activity(False)
                if token:
                    native.frame_end(_data, token)
            session.tell(lambda: detector.got_item(_samples_of(item, loader)))
            return item

        return __next__

    session.patches.wrap(DataLoader, "__iter__", wrap_iter)
    session.patches.wrap(dataloader._BaseDataLoaderIter, "__next__", wrap_next)


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
