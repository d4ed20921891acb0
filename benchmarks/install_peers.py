# SPDX-License-Identifier: Apache-2.0
"""Installs what the extra `bench` names, one by one, and says which could not be installed.

One that has vanished from the registry, or has no wheel for this Python, keeps none of the others
away. The constraints of the Makefile hold: torch stays what it is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import requires

# Without what they require. pynvml: with it torch warns at its import, and the detector of
# stragglers, which is what is measured, uses none of it.
_WITHOUT_DEPENDENCIES = ("nvidia-resiliency-ext",)


def wanted(requirements: Sequence[str]) -> list[str]:
    """The packages of the extra, of all requirements as the metadata has them."""
    return [
        requirement.partition(";")[0].strip()
        for requirement in requirements
        if re.search(r"""extra == ['"]bench['"]""", requirement)
        and not requirement.startswith("pyinstrument-gpu")
    ]


def install(packages: Sequence[str], run: Callable[[list[str]], int]) -> list[str]:
    """Installs them and returns those that failed. `run` runs a command and returns its code."""
    failed = []
    for package in packages:
        options = ["--no-deps"] if package.startswith(_WITHOUT_DEPENDENCIES) else []
        if run([sys.executable, "-m", "pip", "install", "--quiet", *options, package]) != 0:
            failed.append(package)
    return failed


def main() -> int:
    """1: some could not be installed."""
    failed = install(
        wanted(requires("pyinstrument-gpu") or []), lambda command: subprocess.call(command)
    )
    for package in failed:
        print(f"not installed, so missing in the tables: {package}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
