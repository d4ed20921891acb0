# SPDX-License-Identifier: Apache-2.0
"""A device whose driver does nothing, so that what is left of a phase's time is our own part.

Importing this names the stub library to the code under test: the driver is loaded once a process,
at its first use. What is measured with it says nothing about a device.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import _phase_loop as native_loop  # type: ignore[import-not-found]

from pyinstrument_gpu.native import native

LIBRARY = Path(native_loop.__file__).with_name("stub_cuda.so")
os.environ["PYINSTRUMENT_GPU_LIBCUDA"] = str(LIBRARY)


@contextlib.contextmanager
def stub_device() -> Iterator[None]:
    """Recordings inside take it for a device that PyTorch uses."""
    native.attach_device(native_loop.stub_exchange_api())
    try:
        yield
    finally:
        native_loop.detach()
