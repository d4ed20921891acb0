# SPDX-License-Identifier: Apache-2.0
"""Prints what the GPU figures were measured on, as JSON."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import torch

from benchmarks.gpu.limits import nvcc
from benchmarks.machine import describe_machine


def describe() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        **describe_machine(),
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda_of_torch": torch.version.cuda,
        "nvcc": _last_line(nvcc() or "nvcc", "--version"),
    }


def _lines(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.strip().splitlines()


def _first_line(*command: str) -> str | None:
    return next(iter(_lines(*command)), None)


def _last_line(*command: str) -> str | None:
    return next(iter(reversed(_lines(*command))), None)


if __name__ == "__main__":
    print(json.dumps(describe()))
