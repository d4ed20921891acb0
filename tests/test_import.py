# SPDX-License-Identifier: Apache-2.0
"""What importing the package does, and what it leaves alone."""

from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from tests.helpers.script import run_script


def test_import_loads_no_heavy_module() -> None:
    script = """
import sys
import pyinstrument_gpu
heavy = {"numpy", "torch", "rich", "click", "asyncio", "multiprocessing"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    run_script(script)


def test_recording_loads_no_heavy_module_either(tmp_path: Path) -> None:
    script = """
import sys
import pyinstrument_gpu as pig
with pig.record(sys.argv[1]):
    for _ in pig.gpu_steps([1, 2]):
        with pig.gpu_phase("a"):
            pass
heavy = {"numpy", "torch", "rich", "click"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    run_script(script, tmp_path / "a.gpurun")


def test_beside_torch_neither_dynamo_nor_cuda_is_started() -> None:
    script = """
import sys
import torch
import pyinstrument_gpu as pig

with pig.record() as recording, pig.gpu_step(), pig.gpu_phase("a"):
    torch.ones(2).sum()
assert "torch._dynamo" not in sys.modules
assert not torch.cuda.is_initialized()
environment = recording.run.environment
assert environment["torch"] == torch.__version__
assert "gpus" not in environment
"""
    run_script(script)


def test_every_public_name_is_there() -> None:
    assert [name for name in pig.__all__ if not hasattr(pig, name)] == []


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gpu_stage'"):
        _ = pig.gpu_stage
