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
    """Those that the program executes within `counted` (tests/native/counted.h).

    They are the same in every run. Those of the whole program are not: its start and its end
    depend on the environment, down to its size.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--command-line-only=yes",
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/callgrind.out",
            "--collect-atstart=no",
            "--toggle-collect=counted_instructions",
            *map(str, (program, *arguments)),
        ]
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    assert int(found[1]) > 0, f"{program} has no function `counted_instructions`, or no symbols"
    return int(found[1])
