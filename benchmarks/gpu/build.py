# SPDX-License-Identifier: Apache-2.0
"""Builds what the GPU tests and benchmarks need, with what is installed and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "gpu" / (sys.implementation.cache_tag or "python")
TEST_LIBRARIES = BUILD / "tests"
"""Where the libraries are that only tests and benchmarks use."""

_TARGETS = ("_C", "test_modules", "inject_driver_log")


def cmake(*arguments: object) -> None:
    subprocess.run(["cmake", *map(str, arguments)], check=True)


def main() -> None:
    options = (f"-DPython_EXECUTABLE={sys.executable}", "-DPYINSTRUMENT_GPU_TESTS=ON")
    cmake("-S", ROOT, "-B", BUILD, "-G", "Ninja", *options)
    cmake("--build", BUILD, "--target", *_TARGETS)
    # The module as users have it, in its place in the source tree.
    cmake("--install", BUILD, "--prefix", ROOT, "--strip")


if __name__ == "__main__":
    main()
