# SPDX-License-Identifier: Apache-2.0
"""What a reader needs to judge figures: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import pyinstrument_gpu as pig
from benchmarks.gpu.peers import PEERS


def describe_machine() -> dict[str, Any]:
    """Starts a recording for a moment, to see which clock it takes."""
    with pig.record() as recording:
        pass
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "clock": recording.run.environment["clock"]["kind"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        **versions(["torch", "pyarrow", "torcheval", *PEERS]),
        "pyinstrument_gpu": pig.__version__,
    }


def commit() -> str | None:
    """The commit measured; "+" for changes on top; None where git or its data is missing."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed versions; None: not installed."""
    return {package: _version_of(package) for package in packages}


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
