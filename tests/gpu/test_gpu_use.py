# SPDX-License-Identifier: Apache-2.0
"""How a real GPU is used, by the real NVML."""

import time

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.gpu_use.aspect import ASPECT
from pyinstrument_gpu.core.nvml import NvmlError, UseReader, reader_in_use


def test_a_gpu_that_multiplies_is_in_use() -> None:
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
    try:
        found = reader_in_use(UseReader)
    except NvmlError as error:
        pytest.skip(f"needs NVML: {error}")
    assert found is not None
    found[1].close()
    begin_s = time.monotonic()
    with pig.record() as recording:
        while time.monotonic() - begin_s < 3.5:
            with gpu_step(), gpu_phase("multiply"):
                for _ in range(20):
                    matrix @ matrix
                torch.cuda.synchronize()
    (use,) = ASPECT.section(recording.run)
    assert use.device == torch.cuda.current_device()
    assert use.readings >= 3
    assert use.sm_clock_mhz is not None
    assert use.sm_clock_max_mhz is not None
    assert 100 < use.sm_clock_mhz <= use.sm_clock_max_mhz < 5000
    if torch.cuda.get_device_capability() >= (9, 0) and use.sm_active is not None:
        assert use.tensor_active is not None
        assert use.dram_active is not None
        assert use.sm_active > 0.5
        assert 0.2 < use.tensor_active <= 1
        assert 0 < use.dram_active < use.sm_active
