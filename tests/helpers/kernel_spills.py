# SPDX-License-Identifier: Apache-2.0
"""The kernels of the metrics by nvcc, which takes a minute for each architecture: which source was
compiled without a warning and without a spill when that was last written down.

`python -m tests.helpers.kernel_spills` compiles the source of today, and writes it down. Until then
a test compiles it every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from pyinstrument_gpu.native import native

ROOT = Path(__file__).parents[2]
WRITTEN = Path(__file__).with_suffix(".json")
ARCHITECTURE = 90
"""The one that is written down."""

_OPTIONS = ("-std=c++17", "-Xptxas", "-v,-warn-spills", "--Werror", "all-warnings")
_FEWEST_ENTRIES = 27


def nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc") or (home and shutil.which("nvcc", path=f"{home}/bin")) or None


def release(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"release [\d.]+, V([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


def source() -> str:
    """A digest of what is compiled: all texts without comments, and the options."""
    texts = dict(native.metric_kernel_texts())
    code = {name: re.sub(r"\s+", " ", re.sub(r"//.*", "", text)) for name, text in texts.items()}
    return hashlib.sha256(json.dumps([code, _OPTIONS], sort_keys=True).encode()).hexdigest()


def written() -> dict[str, str]:
    """The digests that were written down, by the release of nvcc."""
    digests: dict[str, str] = json.loads(WRITTEN.read_text())
    return digests


def check(compiler: str, architecture: int) -> None:
    """Compiles. Raises AssertionError where there is a warning or a spill."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(compiler, *_OPTIONS, f"-arch=sm_{architecture}", "-cubin"),
                *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'pyinstrument_gpu'}"),
                *("-o", f"{folder}/kernel.cubin", f"{ROOT}/csrc/metrics/metric_kernel.cu"),
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) >= _FEWEST_ENTRIES
    assert set(spills) == {("0", "0")}


def main() -> None:
    compiler = nvcc()
    if compiler is None:
        raise SystemExit("there is no nvcc on the path or in CUDA_HOME")
    check(compiler, ARCHITECTURE)
    digests = {**(written() if WRITTEN.exists() else {}), release(compiler): source()}
    WRITTEN.write_text(json.dumps(dict(sorted(digests.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
