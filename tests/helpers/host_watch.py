# SPDX-License-Identifier: Apache-2.0
"""The watch of real waits on a machine without a device: tensors of the host are taken for some of
a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pyinstrument_gpu.aspects.syncs import watch
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import tensor_device
from pyinstrument_gpu.patching.hooks import Enter, Hooks, QuickCheck


@contextmanager
def watched_host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "_lies_there", _lies_here)
        patched.setattr(watch, "Hooks", _HearingAll)
        watching = watch.SyncWatch()
        native.sync_watch(True, True)
        watching.install()
        try:
            yield
        finally:
            native.sync_watch(False, True)
            watching.remove()


class _HearingAll(Hooks):
    """Hooks whose listener gets calls with tensors of the host, too."""

    def subscripts(self, quick_check: QuickCheck, enter_get: Enter, enter_set: Enter) -> None:
        super().subscripts(QuickCheck.NEVER, enter_get, enter_set)

    def _hook(self, name: str, function: Any, quick_check: QuickCheck, enter: Enter) -> None:
        super()._hook(name, function, QuickCheck.NEVER, enter)


def _lies_here(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and not tensor.is_meta
        and not tensor_device.is_fake(tensor)
    )
