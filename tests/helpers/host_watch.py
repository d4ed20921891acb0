# SPDX-License-Identifier: Apache-2.0
"""The watch of real waits on a machine without a device: tensors of the host are taken for some of
a device."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyinstrument_gpu.native import native
from pyinstrument_gpu.syncs.watch import SyncWatch


@contextmanager
def watched_host() -> Iterator[None]:
    watch = SyncWatch(as_if=True)
    native.sync_watch(True, True)
    watch.install()
    try:
        yield
    finally:
        native.sync_watch(False, True)
        watch.remove()
