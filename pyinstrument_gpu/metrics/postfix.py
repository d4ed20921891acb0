# SPDX-License-Identifier: Apache-2.0
"""Readings shown by a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.metrics.values import Reading


def tqdm_postfix(bar: Any, *keys: str) -> Callable[[Reading], None]:
    """Return a callback for `log_every` that shows values behind a progress bar of tqdm.

        bar = tqdm(loader)
        with metrics.log_every(10, pig.tqdm_postfix(bar, "loss", "accuracy@1")):
            for x, y in bar:
                ...

    Args:
        bar: a bar of `tqdm`, or anything with its `set_postfix`.
        keys: the values to show, `loss` alone if there are none. One that a reading does not have
            is shown as `?`.

    Raises:
        TypeError: the bar has no `set_postfix`, or a key is not a str.
    """
    if not hasattr(bar, "set_postfix"):
        raise TypeError(f"bar must be a progress bar of tqdm, got {type(bar).__name__}")
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise TypeError(f"keys must be names of values, as 'loss', got {wrong[0]!r}")
    shown = keys or ("loss",)

    def show(reading: Reading) -> None:
        bar.set_postfix({key: reading.values.get(key, "?") for key in shown})

    return show
