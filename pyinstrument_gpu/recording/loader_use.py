# SPDX-License-Identifier: Apache-2.0
"""The kinds of DataLoaders that feed the steps of a recording, and how often they do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyinstrument_gpu.native import native

_MOST_KINDS = 64


class LoaderOptions(NamedTuple):
    """The options of a DataLoader; see `ProgramFacts`."""

    workers: int
    pins: bool
    prefetch: int
    persistent: bool


def options_of(loader: Any) -> LoaderOptions | None:
    """Return the options of a DataLoader; None where they are not what a DataLoader's are."""
    try:
        workers, prefetch = loader.num_workers, loader.prefetch_factor
        if type(workers) is not int or workers < 0:
            return None
        # Without workers there is no such number. (Nobody fetches ahead.)
        prefetch = prefetch if workers and type(prefetch) is int else 0
        pins, persistent = bool(loader.pin_memory), bool(loader.persistent_workers)
    except Exception:  # of a subclass's
        return None
    return LoaderOptions(workers, pins, prefetch, persistent)


_drawn: dict[LoaderOptions | None, list[int]] = {}
"""How many items `gpu_steps` has drawn for steps, by the kind of loader; None: of something else
than a DataLoader."""


def counter_of(iterable: Iterable[Any]) -> list[int]:
    """Return a list whose only element counts the items that steps draw from an iterable."""
    torch_loader: Any = sys.modules.get("torch.utils.data.dataloader")
    options = None
    if torch_loader is not None:
        try:
            if isinstance(iterable, torch_loader.DataLoader):
                options = options_of(iterable)
        except Exception:  # of an object that says itself what its class is
            options = None
    if options not in _drawn and len(_drawn) >= _MOST_KINDS:
        options = None
    return _drawn.setdefault(options, [0])


def begin() -> None:
    """Forget what was counted: a recording begins."""
    for counter in _drawn.values():
        counter[0] = 0
    native.forget_loader_uses()


def facts() -> dict[str, Any]:
    """Return what is known of the loaders, by the name of the field of `ProgramFacts`."""
    drawn: Counter[LoaderOptions | None] = Counter()
    for options, counter in _drawn.items():
        drawn[options] += counter[0]
    asked: set[LoaderOptions | None] = set()
    for used, steps, draws in native.loader_uses():
        options = LoaderOptions(*used)  # type: ignore[arg-type]
        drawn[options] += steps
        if draws:
            asked.add(options)
    kinds = Counter({options: count for options, count in drawn.items() if count})
    if not kinds:
        # The program opens its steps itself, beside its loops over loaders. Which of these fed
        # them is only known if all are of one kind.
        return _facts_of(asked.pop()) if len(asked) == 1 else {}
    facts = _facts_of(max(kinds, key=lambda options: kinds[options]))
    facts.pop("loader_workers", None)
    if None not in kinds:
        facts["loader_workers"] = max(options.workers for options in kinds if options is not None)
    return facts


def _facts_of(options: LoaderOptions | None) -> dict[str, Any]:
    if options is None:
        return {}
    return {f"loader_{name}": value for name, value in options._asdict().items()}
