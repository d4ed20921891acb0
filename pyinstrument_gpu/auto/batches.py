# SPDX-License-Identifier: Apache-2.0
"""Batches as a training loop gets them from a library that iterates over a DataLoader for it.

Such a library may fetch ahead and move batches to a device. Noted where the DataLoader gives it, an
item would belong to the step before the one that trains on it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pyinstrument_gpu.native import native

_fetching = threading.local()


class FetchedBatches:
    """The iterator of such a library. Asking it for a batch is the phase "data"."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner

    def __iter__(self) -> FetchedBatches:
        return self

    def __next__(self) -> Any:
        was_open, _fetching.is_open = is_fetching(), True
        try:
            return next(self._inner)
        finally:
            _fetching.is_open = was_open


def is_fetching() -> bool:
    """Return whether the calling thread is in such a library, which may copy what it fetches to a
    device."""
    return getattr(_fetching, "is_open", False)


class _Phases(Protocol):
    """See `AutoPhases`, which builds on this module."""

    is_hooked: bool
    not_hooked: list[str]

    def when_removed(self, function: Callable[[], None]) -> None: ...


def follow(phases: _Phases, loader: type) -> None:
    """Observe the loops over loaders of a class, for as long as these phases are installed.

    `iter(loader)` gives `FetchedBatches` then: it replaces the method of the class, because only
    calls by Python itself can be observed.
    """
    original = vars(loader).get("__iter__")
    if original is None or not phases.is_hooked or hasattr(original, "_pyinstrument_gpu"):
        return

    @functools.wraps(original)
    def batches_of(self: Any) -> FetchedBatches:
        return FetchedBatches(original(self))

    batches_of._pyinstrument_gpu = True  # type: ignore[attr-defined]
    if not (
        native.observe_calls(FetchedBatches.__next__, "data")
        and native.observe_calls(batches_of, "data start")
    ):
        phases.not_hooked.append(f"{loader.__name__}.__iter__")
        return
    setattr(loader, "__iter__", batches_of)  # noqa: B010 - mypy knows none of a type
    phases.when_removed(lambda: setattr(loader, "__iter__", original))


_OPTIONS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


def follow_fetcher(
    phases: _Phases, fetcher: type, loaders_of: Callable[[Any], Sequence[Any]]
) -> None:
    """Observe iterators of a class, for as long as these phases are installed. `iter` starts them
    over, and `next` gives the batches of a step's part, one of each of their loaders.

    Args:
        loaders_of: the DataLoaders of such an iterator.
    """
    starts, gives = (vars(fetcher).get(name) for name in ("__iter__", "__next__"))
    if starts is None or gives is None or not phases.is_hooked or hasattr(fetcher, _OPTIONS[0]):
        return
    if not (native.observe_calls(gives, "data") and native.observe_calls(starts, "data start")):
        phases.not_hooked.append(f"{fetcher.__name__}.__iter__")
        return

    def batch_sampler(self: Any) -> Any:
        """Return the batch sampler of one of the loaders, if each makes batches."""
        samplers = [getattr(loader, "batch_sampler", None) for loader in loaders_of(self)]
        return None if None in samplers else next(iter(samplers), None)

    def option(name: str) -> property:
        def of(self: Any) -> Any:
            (loader,) = loaders_of(self)
            return getattr(loader, name)

        return property(of)

    # What is asked of the loader that a loop is over.
    attributes = {"batch_sampler": property(batch_sampler)}
    attributes.update({name: option(name) for name in _OPTIONS})
    for name, attribute in attributes.items():
        setattr(fetcher, name, attribute)

    def restore() -> None:
        for name in attributes:
            delattr(fetcher, name)

    phases.when_removed(restore)
