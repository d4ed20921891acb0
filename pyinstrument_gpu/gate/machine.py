# SPDX-License-Identifier: Apache-2.0
"""Who else uses the machine while a gate measures."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_QUERY_S = 20
_LEAST_WATCHED_S = 1.0
"""The kernel counts in hundredths of a second."""


@dataclass
class OtherLoad:
    """How many processors other programs used, on average over the times that were watched."""

    _cpu_s: float = 0.0
    _watched_s: float = 0.0
    _is_known: bool = True

    @property
    def processors(self) -> float | None:
        """None where the system does not say, or not for so short a time."""
        if not self._is_known or self._watched_s < _LEAST_WATCHED_S:
            return None
        return max(0.0, self._cpu_s / self._watched_s)

    def __enter__(self) -> None:
        self._begin = _busy_s(), _own_s(), time.monotonic()

    def __exit__(self, *_: object) -> None:
        busy_s, own_s, now_s = self._begin
        end_s = _busy_s()
        if end_s is None or busy_s is None:
            self._is_known = False
            return
        self._cpu_s += end_s - busy_s - (_own_s() - own_s)
        self._watched_s += time.monotonic() - now_s


def _busy_s() -> float | None:
    """What all processors together have worked since the start of the machine."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _waiting, *interrupts = map(int, fields[1:9])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def _own_s() -> float:
    """What this process and those that it has waited for have worked."""
    return sum(os.times()[:4])


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
