# SPDX-License-Identifier: Apache-2.0
"""Builds and runs `limits.cu`, which prints its figures itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("limits.cu")
BUILD = Path(__file__).parents[2] / "build" / "gpu"


def nvcc() -> str | None:
    """The compiler, or None: from the path, CUDA_HOME, or where it is usually installed."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    places = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    return shutil.which("nvcc", path=os.pathsep.join(places))


def compile_limits(program: Path, architecture: str) -> None:
    """Makes the program for an architecture such as "sm_90".

    Raises:
        RuntimeError: there is no nvcc, or it fails.
    """
    compiler = nvcc()
    if compiler is None:
        raise RuntimeError("limits.cu needs nvcc: put it on the path, or set CUDA_HOME")
    program.parent.mkdir(parents=True, exist_ok=True)
    options = ["-O3", "-std=c++17", f"-arch={architecture}"]
    command = [compiler, *options, str(SOURCE), "-o", str(program), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def main() -> None:
    import torch

    program = BUILD / "limits"
    major, minor = torch.cuda.get_device_capability()
    compile_limits(program, f"sm_{major}{minor}")
    environment = {**os.environ}
    environment.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    one_connection = {**environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    subprocess.run([program], env=environment, check=True)
    subprocess.run([program, "overlap"], env=environment, check=True)
    subprocess.run([program, "overlap"], env=one_connection, check=True)


if __name__ == "__main__":
    main()
