# SPDX-License-Identifier: Apache-2.0
"""Builds what the GPU tests and benchmarks need, with what is installed and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "build" / "gpu" / "release"
TESTS = ROOT / "build" / "gpu" / "tests"
TEST_MODULES = TESTS / "tests"
"""Where the test-only modules are."""


def cmake(*arguments: object) -> None:
    subprocess.run(["cmake", *map(str, arguments)], check=True)


def main() -> None:
    configure = ["-S", ROOT, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    # As users have it, in its place in the source tree.
    cmake("--fresh", "-B", RELEASE, *configure)
    cmake("--build", RELEASE)
    cmake("--install", RELEASE, "--prefix", ROOT)
    cmake("--fresh", "-B", TESTS, *configure, "-DPYINSTRUMENT_GPU_TESTS=ON")
    cmake("--build", TESTS, "--target", "_call_loop")


if __name__ == "__main__":
    main()
