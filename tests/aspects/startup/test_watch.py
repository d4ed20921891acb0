# SPDX-License-Identifier: Apache-2.0
"""What is in the file of a program that is killed: it ends where it was last written."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.startup import watch
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native

pytestmark = pytest.mark.skipif(not hasattr(native, "hook_call"), reason="no native module")


@pytest.fixture(autouse=True)
def _first_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that nobody launched."""
    monkeypatch.setattr(watch, "_is_told", False)
    monkeypatch.setattr(watch, "_launched", None)
    # Where pytest runs tests in several processes these have no file.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)


def test_begin_of_the_process_is_there_from_the_first_block_on(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path):
        assert 0 < Run.load(path).environment["process_ns"] < time.monotonic_ns()
    with pig.record(tmp_path / "b.gpurun"):  # what came before it is no start-up
        assert "process_ns" not in Run.load(tmp_path / "b.gpurun").environment


def test_start_up_is_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path):
        native.harvest()
        assert Run.load(path).startup is not None
        for step in pig.gpu_steps(range(3)):
            native.harvest()
            found = Run.load(path).startup
            assert found is not None, step
