# SPDX-License-Identifier: Apache-2.0
"""Tensors of classes that answer for torch's functions themselves, by `__torch_function__`.

Such a class is given the function that was called, and may look it up in a table of its own. What
it knows is what stood in torch when it was made: the original where it is older than our patch, and
the patched function where it is younger.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER


def heeding(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """What calls `original`, which stands as `owner.name` and is about to be patched, so that such
    classes are given the function that they know."""
    older = weakref.WeakSet(_subclasses(torch.Tensor))
    unpatched = _without_ours(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not has_torch_function(args):
            return original(*args, **kwargs)
        special = [tensor for tensor in args if _is_special(tensor)]
        if not special:  # a mode answers, which C++ finds by itself
            return original(*args, **kwargs)
        is_older = any(type(tensor) in older for tensor in special)
        function = unpatched if is_older else getattr(owner, name)
        return handle_torch_function(function, special, *args, **kwargs)

    return call


def _is_special(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and type(argument) not in tensor_device.PLAIN


def _subclasses(kind: type) -> Iterator[type]:
    subclass: type
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _without_ours(function: Any) -> Any:
    while (code := getattr(function, "__code__", None)) and code.co_filename.startswith(OWN_FOLDER):
        function = function.__wrapped__
    return function
