# SPDX-License-Identifier: Apache-2.0
"""Edits of a `DataLoader`: its worker processes, and how batches come from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Hand, Value

_LOADING = ("data", "data start", "data end")
_MOST_WORKERS = 64
_PREFETCH = 2
"""Batches that each worker makes ahead, by torch's default."""


class _LoaderEdit(Edit):
    """Other arguments of a `DataLoader`: those of the loaders that shuffle, where any does."""

    group = "loader"
    changes = Changes.NOTHING
    positions = MappingProxyType({"num_workers": 5, "pin_memory": 7})

    def reach(self, facts: Facts) -> float:
        return facts.share(*_LOADING)

    def arguments(self, value: Value) -> Mapping[str, Any]:
        """Return the arguments by name."""
        raise NotImplementedError

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a loader with these arguments can have it."""
        return True

    def text(self, value: Value) -> str:
        keywords = ", ".join(f"{key}={text}" for key, text in self.keywords(value).items())
        return f"DataLoader({keywords})"

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {key: repr(one) for key, one in self.arguments(value).items()}

    def make(self, value: Value, hand: Hand) -> None:
        from torch.utils.data import DataLoader

        new = self.arguments(value)

        def change(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
            is_new = any(arguments.get(key) != one for key, one in new.items())
            return new if is_new and self.fits(arguments) else None

        hand.replace(DataLoader, "__init__", change, _shuffles)


def _shuffles(arguments: Mapping[str, Any]) -> int:
    """2 if it shuffles, and 1 if something else decides on the order: wrappers of a loader, as of
    accelerate, have its sampler."""
    if arguments.get("shuffle"):
        return 2
    samplers = arguments.get("sampler"), arguments.get("batch_sampler")
    return 1 if samplers != (None, None) else 0


class Workers(_LoaderEdit):
    """Another number of worker processes, which may stay from one epoch to the next."""

    name = "workers"
    changes = Changes.DRAWS

    def values(self, facts: Facts) -> Sequence[Value]:
        predicted, cores = facts.predicted_workers, facts.cores
        numbers = [predicted, cores, 2 * cores, 1]
        if facts.workers and (predicted is None or predicted < facts.workers):
            numbers += [0, facts.workers // 2]
        elif facts.workers:  # it is known that fewer would be waited for longer
            numbers = [one for one in numbers if (one or 0) > facts.workers]
        chosen = [one for one in dict.fromkeys(numbers) if one is not None and one <= _MOST_WORKERS]
        chosen = [one for one in chosen if one != facts.workers]
        # Without workers there is no line that says whether they stay.
        staying = [] if facts.workers or not chosen else [[chosen[0], True]]
        return [*chosen[:1], *staying, *chosen[1:]]

    def warmup(self, value: Value, facts: Facts) -> int:
        return _PREFETCH * (value[0] if isinstance(value, list) else int(value))

    def arguments(self, value: Value) -> Mapping[str, Any]:
        if isinstance(value, list):
            return {"num_workers": value[0], "persistent_workers": value[1]}
        if value == 0:
            return {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
        return {"num_workers": value}

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {"num_workers": "0"} if value == 0 else super().keywords(value)

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        from torch.utils.data import IterableDataset

        # With several workers, such a one gives its samples several times unless it shares them.
        return not isinstance(arguments.get("dataset"), IterableDataset)


class PersistentWorkers(_LoaderEdit):
    """Workers that stay from one epoch to the next."""

    name = "persistent_workers"

    def reach(self, facts: Facts) -> float:
        return facts.share("data start", "data end") if facts.workers else 0.0

    def arguments(self, value: Value) -> Mapping[str, Any]:
        return {"persistent_workers": True}

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments.get("num_workers"))


class PrefetchFactor(_LoaderEdit):
    """More batches that each worker makes ahead."""

    name = "prefetch_factor"

    def reach(self, facts: Facts) -> float:
        return super().reach(facts) if facts.workers else 0.0

    def values(self, facts: Facts) -> Sequence[Value]:
        return (4, 8)

    def warmup(self, value: Value, facts: Facts) -> int:
        return int(value) * (facts.workers or 0)

    def arguments(self, value: Value) -> Mapping[str, Any]:
        return {"prefetch_factor": value}

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments.get("num_workers"))


class PinMemory(_LoaderEdit):
    """Batches in pinned memory, whose copies to the device the host does not wait for."""

    name = "pin_memory"

    def reach(self, facts: Facts) -> float:
        return facts.share("h2d", *_LOADING) if facts.has_gpu else 0.0

    def arguments(self, value: Value) -> Mapping[str, Any]:
        return {"pin_memory": True}

    def text(self, value: Value) -> str:
        return f"{super().text(value)} and .to(device, non_blocking=True)"

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        super().make(value, hand)
        if hand.is_dry:
            return
        original: Callable[..., Any] = torch.Tensor.to

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) is torch.Tensor and not tensor.is_cuda and tensor.is_pinned():
                kwargs.setdefault("non_blocking", True)
            return original(tensor, *args, **kwargs)

        torch.Tensor.to = to  # type: ignore[method-assign, assignment]
