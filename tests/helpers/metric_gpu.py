# SPDX-License-Identifier: Apache-2.0
"""Accumulators on a GPU that is simulated: tensors in host memory pass for the device's, and the
kernels are the same arithmetic on the CPU, run at their launch. All between the two is real.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import _simulated_cuda as simulated  # type: ignore[import-not-found]
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.metrics import accumulator
from pyinstrument_gpu.native import native
from tests.helpers.simulated_cuda import SimulatedCuda, simulated_cuda

FAKE_NVRTC = Path(simulated.__file__).with_name("inject_nvrtc.so")
"""It compiles for the simulated GPU, whose driver takes any code; for builds without nvcc."""

BLOCKING_OR_ALLOCATING = (
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuMemHostAlloc",
    "cuLibraryLoadData",
)


@contextlib.contextmanager
def metric_gpu(devices: int = 1) -> Iterator[SimulatedCuda]:
    """All tensors are on device 0 of it, unless `set_device_of_tensors` says otherwise."""
    api = torch.Tensor.__dlpack_c_exchange_api__
    pig.MetricAccumulator()  # the first one hands over torch's own
    with simulated_cuda(devices) as cuda:
        simulated.run_metric_kernels()
        native.set_torch(torch.Tensor, simulated.device_api_capsule(api), torch.get_num_threads)
        nvrtc = {"PYINSTRUMENT_GPU_LIBNVRTC": str(FAKE_NVRTC), **os.environ}
        try:
            with (
                mock.patch.dict(os.environ, nvrtc),
                mock.patch.object(accumulator, "_on_cuda", lambda device: True),
            ):
                yield cuda
        finally:
            native.set_torch(torch.Tensor, api, torch.get_num_threads)


def set_device_of_tensors(device: int) -> None:
    """On which device all tensors are from now on."""
    simulated.set_device_of_tensors(device)
