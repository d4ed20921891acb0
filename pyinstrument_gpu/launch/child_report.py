# SPDX-License-Identifier: Apache-2.0
"""The report of a run file, written by a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_DEADLINE_S = 60


def report_by_child(path: Path | None) -> str:
    """What `pyinstrument-gpu report` prints.

    Raises:
        OSError, subprocess.SubprocessError: it can't be started, fails or takes too long.
    """
    import subprocess  # only for this

    done = subprocess.run(
        [sys.executable, "-m", "pyinstrument_gpu", "report", str(path)],
        cwd="/",  # the program's may be gone
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=_DEADLINE_S,
    )
    return done.stdout.rstrip("\n")
