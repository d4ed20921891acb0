# SPDX-License-Identifier: Apache-2.0
"""Other users of the GPUs while a gate measures. A file of its own, as another program is asked."""

from __future__ import annotations

import os
import shutil
import subprocess

_QUERY_S = 20


def gpu_users() -> dict[int, str] | None:
    """The processes that compute on the GPUs which CUDA_VISIBLE_DEVICES leaves, as far as
    `nvidia-smi` shows them: it may not from within a container. None where it can't be asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return {}
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    chosen = [] if visible is None else ["-i", visible.replace(" ", "")]
    query = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [program, *chosen, *query],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=_QUERY_S,
        )
        rows = [line.partition(",") for line in done.stdout.splitlines() if line.strip()]
        return {int(pid): name.strip() for pid, _, name in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
