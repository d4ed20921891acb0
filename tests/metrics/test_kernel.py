# SPDX-License-Identifier: Apache-2.0
"""The kernel compiles for every architecture, without a warning and without a spill."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
ENTRIES = 29


def nvcc() -> str:
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc") or (home and shutil.which("nvcc", path=f"{home}/bin"))
    if not found:
        pytest.skip("there is no nvcc on the path or in CUDA_HOME")
    return found


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(each, marks=pytest.mark.thorough if each == 90 else pytest.mark.slow)
        for each in ARCHITECTURES
    ],
)
def test_no_warning_and_no_spill(architecture: int, tmp_path: Path) -> None:
    options = [
        "-std=c++17",
        f"-I{ROOT / 'csrc'}",
        f"-I{ROOT / 'pyinstrument_gpu'}",
        f"-arch=sm_{architecture}",
        "-cubin",
    ]
    options += ["-Xptxas", "-v,-warn-spills", "--Werror", "all-warnings"]
    source = ROOT / "csrc" / "metrics" / "metric_kernel.cu"
    result = subprocess.run(
        [nvcc(), *options, "-o", tmp_path / "kernel.cubin", source],
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", result.stderr)
    assert len(spills) >= ENTRIES
    assert set(spills) == {("0", "0")}
