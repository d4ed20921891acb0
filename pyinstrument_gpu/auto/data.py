# SPDX-License-Identifier: Apache-2.0
"""Phases "data", waiting for the next item of a DataLoader, "data start", the start of a loop over
it and of its workers, and "data end", finding that it has no further item."""

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
_start = native.gpu_phase("data start")
_end = native.gpu_phase("data end")
_gpu_steps_code = steps._Steps.__iter__.__code__


def install(session: Session) -> None:
    """Patch `DataLoader.__iter__` and the `__next__` of its iterators."""
    # Which loader an iterator is of; a loader stands for itself.
    loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def passes_by() -> bool:
        # gpu_steps times the wait itself.
        return session.passes_by() or sys._getframe(2).f_code is _gpu_steps_code

    def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __iter__(self: Any) -> Any:
            if passes_by():
                return original(self)
            token = session.begin(_start, session.detector.starts_loader, self)
            try:
                result = original(self)
            finally:
                session.end(_start, token)
            session.tell(loaders.__setitem__, result, self)
            return result

        return __iter__

    def wrap_next(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            if passes_by():
                return original(self)
            detector, loader = session.detector, loaders.get(self)
            token = session.begin(_data, detector.asks_for_item, loader, torch.is_grad_enabled())
            try:
                result = original(self)
            except StopIteration:
                native.frame_rename(_end, token)
                session.tell(detector.got_none, loader)
                raise
            finally:
                session.end(_data, token)
            session.tell(lambda: detector.got_item(_samples_of(result, loader)))
            return result

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
