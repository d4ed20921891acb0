# SPDX-License-Identifier: Apache-2.0
"""The watch of real waits on a machine without a device: tensors of the host are taken for some of
a device."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pyinstrument_gpu.aspects.syncs import watch
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.patching.hooks import Hooks


@contextmanager
def watched_host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "_lies_there", _lies_here)
        patched.setattr(watch, "Hooks", functools.partial(Hooks, hears_of_host=True))
        watching = watch.SyncWatch()
        native.sync_watch(True, True)
        watching.install()
        try:
            yield
        finally:
            native.sync_watch(False, True)
            watching.remove()


def _lies_here(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and not tensor.is_meta
        and not tensor_device.is_fake(tensor)
    )
