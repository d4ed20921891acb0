# SPDX-License-Identifier: Apache-2.0
"""Python programs in a process of their own, for what happens once per process."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.helpers.python_server import run_fresh_python, run_python


def run_script(
    source: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    exit_code: int = 0,
    is_fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run source with this interpreter and its import path. Fails the test on another exit code.

    Args:
        environment: variables beside those of this process.
        is_fresh: whether a source that imports torch is given a new process, in which torch has not
            been imported. One that does not is always given one.
    """
    run = run_python if "torch" in source and not is_fresh else run_fresh_python
    done = run(
        "-c",
        source,
        *arguments,
        environment={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
    )
    if done.returncode != exit_code:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
