# SPDX-License-Identifier: Apache-2.0
"""Finding the package of a framework."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from pyinstrument_gpu.errors import MissingDependencyError


def import_framework(module: str, package: str, oldest: tuple[int, int]) -> Any:
    """Import a module of a framework.

    Args:
        module: its name, such as "lightning.pytorch".
        package: what is installed, such as "lightning".
        oldest: the first version that is supported.

    Raises:
        MissingDependencyError: it is not installed, or older. The message has the command.
    """
    needed = f"{package}>={oldest[0]}.{oldest[1]}"
    command = f"pip install -U '{needed}'"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and something else is missing
        raise MissingDependencyError(f"{package} is not installed: {command}") from error
    version = version_of(found)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    # One that can't be read is a build of the framework's developers.
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest:
        raise MissingDependencyError(
            f"{package} {version} is older than the first version that is supported, "
            f"{oldest[0]}.{oldest[1]}: {command}"
        )
    return found


def version_of(module: Any) -> str:
    """That of the package that a module belongs to; empty where it says none."""
    package = sys.modules.get(str(module.__name__).partition(".")[0], module)
    return str(getattr(package, "__version__", getattr(module, "__version__", "")))
