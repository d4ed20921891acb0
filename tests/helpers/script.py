# SPDX-License-Identifier: Apache-2.0
"""Python programs in a process of their own, for what happens once per process."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

# Only a program that hangs takes as long.
_HANGS_AFTER_S = 600


def run_script(
    source: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    exit_code: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run source with this interpreter and its import path. Fails the test on another exit code."""
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_HANGS_AFTER_S,
    )
    if done.returncode != exit_code:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
