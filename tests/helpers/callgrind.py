# SPDX-License-Identifier: Apache-2.0
"""Instructions of native programs, counted by valgrind."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MISSING = None if shutil.which("valgrind") else "valgrind is not installed (Debian: valgrind)"


def native_program(name: str) -> Path:
    """A file that the native build has put where its modules are."""
    return next(path for folder in sys.path if (path := Path(folder, name)).is_file())


def instructions(
    program: Path, *arguments: object, environment: dict[str, str] | None = None
) -> int:
    """Those of the whole program, which are the same in every run."""
    with tempfile.TemporaryDirectory() as folder:
        output = f"--callgrind-out-file={folder}/callgrind.out"
        command = ["valgrind", "--tool=callgrind", output, *map(str, (program, *arguments))]
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])
